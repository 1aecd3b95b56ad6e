#include "framework/format/reshard/uncut_model.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>

#include "framework/format/sharded/stages.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

using Groups = std::vector<std::vector<std::string>>;

// A stage without experts has no group of them. Those groups come last.
bool is_of_experts(const Value& settings) {
  return settings.find(keys::kMoe).value_or(false).as_bool();
}

// Returns the groups of a model-parallel rank of an ordinary checkpoint.
Groups groups_of(const ShardedCheckpoint& source, size_t mp) {
  Groups groups;
  for (const auto& names : source.groups.at(mp))
    groups.push_back(
        optimizers_order(names, source.model_states[mp], source.optimizers[mp], source.dp_size));
  return groups;
}

// Returns the groups that the model-states file of a universal folder's rank lists.
Groups groups_of(const UncutModel& model, const Value& state) {
  const Value shapes = state.find(keys::kParamShapes);
  if (!shapes)
    throw Unreadable(state.where() + ": has no " + std::string(keys::kParamShapes) +
                     ", so which parameters are in which group of the optimizer is not known");
  Groups groups(model.settings.size());
  size_t taken = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (taken == shapes.size() && is_of_experts(model.settings[g])) continue;
    const size_t lists = model.mesh.stage == 3 ? model.settings[g].at(keys::kParams).size() : 1;
    for (size_t i = 0; i < lists; ++i)
      for (std::string& name :
           optimizers_order(names_of(named_shapes(shapes.at(taken++))), state,
                            model.checkpoint.optimizer_state, model.mesh.dp_size))
        groups[g].push_back(std::move(name));
  }
  if (taken != shapes.size()) shapes.fail(std::to_string(taken) + " groups, as of the optimizer");
  return groups;
}

// Adds the groups of a stage. Stages share tied parameters.
void add_stage(UncutModel& model, const Groups& stage, const std::string& where) {
  Groups& groups = model.groups;
  const auto missing = std::span(model.settings).subspan(std::min(stage.size(), groups.size()));
  if (stage.size() > groups.size() || !std::ranges::all_of(missing, is_of_experts))
    throw Unreadable(where + ": pipeline stages have " + std::to_string(groups.size()) + " and " +
                     std::to_string(stage.size()) + " groups of the optimizer");
  std::set<std::string> known;
  for (const auto& names : groups) known.insert(names.begin(), names.end());
  for (size_t g = 0; g < stage.size(); ++g)
    for (const std::string& name : stage[g])
      if (known.insert(name).second) groups[g].push_back(name);
}

}  // namespace

CheckpointMesh mesh_of(const Checkpoint& universal) {
  const Value& metadata = universal.metadata;
  const Value counts = universal.optimizer_state.find(keys::kPartitionCount),
              count = counts.is_list() && counts.size() > 0 ? counts.at(0) : counts;
  const auto [tp, pp] = degrees_of(metadata);
  if (tp < 1 || pp < 1 || tp > 1 << 16 || pp > 1 << 16)
    metadata.find(keys::kParallelDimensions).fail("plausible degrees");
  return {.tp_size = static_cast<int>(tp),
          .pp_size = static_cast<int>(pp),
          .dp_size = static_cast<int>(
              metadata.find(keys::kDpWorldSize).value_or(count).value_or(1).as_int()),
          .stage = zero_stage_of(universal.optimizer_state.find(keys::kZeroStage).value_or(1)),
          .dtype = model_dtype(metadata, {}),
          .ep_size = ExpertSpread::from(universal.model_states).ep_size};
}

void check_hyperparameters(const Value& param_groups, const fs::path& folder) {
  for (const Value& group : param_groups.items()) {
    const size_t kept = group.find(kStepState) ? 2 : 1;  // with the indices of its parameters
    if (group.size() > kept) continue;
    throw UserError(
        folder.string() + ": has no lr, betas and other hyperparameters, since it was saved with " +
        "elastic_checkpoint (once the default). A job on any mesh takes its own if it loads the " +
        "folder of ds_to_universal with \"checkpoint\": {\"load_universal\": true}; or load this "
        "in " +
        "DeepSpeed, and save it with elastic_checkpoint off");
  }
}

LayerName layer_name(const std::string& name) {
  if (name.starts_with(kTiedModules)) {
    const size_t dot = name.find('.', kTiedModules.size());
    return {kEmbeddingLayer, dot == std::string::npos ? name : name.substr(dot + 1)};
  }
  LayerName found;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.' || found.layer < 0)
    return {};
  found.name = name.substr(static_cast<size_t>(end + 1 - name.data()));
  return found;
}

// DeepSpeed's pipelines have no module. Ours have one at ZeRO 3.
bool is_pipeline(const Value& model_state, const std::string& name) {
  return !model_state.find(keys::kModule) ||
         (model_state.find(keys::kDropoutSeed) && layer_name(name).layer >= 0);
}

bool needs_uncut_tensors(const ShardedCheckpoint& source, const CheckpointMesh& from,
                         const CheckpointMesh& to) {
  if (from.tp_size != to.tp_size || from.pp_size != to.pp_size || source.experts.whole) return true;
  const bool moves = (from.stage == 3) != (to.stage == 3),
             lacks_files = from.dtype != to.dtype && source.layer_files.empty();
  return (moves || lacks_files) && !source.parameters.empty() &&
         is_pipeline(source.model_states[0], source.parameters.begin()->first);
}

UncutModel uncut_model(Checkpoint checkpoint, const ShardedCheckpoint* ranks) {
  UncutModel model{.checkpoint = std::move(checkpoint)};
  const fs::path& folder = model.checkpoint.path;
  require_states(folder, model.checkpoint.states_refused, "zero_to_fp32 exports the weights alone");
  const Value& state = model.checkpoint.optimizer_state;
  if (!state) throw Unreadable(folder.string() + ": has no optimizer's state");
  model.mesh = ranks ? mesh_of(*ranks) : mesh_of(model.checkpoint);
  const auto mp_size =
      static_cast<size_t>(model.mesh.tp_size) * static_cast<size_t>(model.mesh.pp_size);
  if (const size_t held = model.checkpoint.model_states.size(); held < mp_size)
    throw DamagedFile(folder.string() +
                      ": files are missing: " + model_states_file(static_cast<int>(held)) +
                      ", of " + std::to_string(mp_size) + " ranks");
  const Value inner = state.find(keys::kOptimizerStateDict).value_or(Value::dict()),
              in_torch = inner.find(keys::kParamGroups),
              groups = in_torch ? in_torch : state.at(keys::kParamGroups);
  check_hyperparameters(groups, folder);
  model.settings = groups.items();
  const Value states = inner.find(keys::kState).value_or(Value::dict());
  for (const Value& settings : model.settings) {
    const Value params = settings.at(keys::kParams);
    model.numbers.push_back(params.size() > 0 ? states.find(params.at(0).as_int()) : Value());
  }
  model.groups.resize(model.settings.size());
  for (size_t mp = 0; mp < mp_size; mp += static_cast<size_t>(model.mesh.tp_size))  // tp rank 0's
    add_stage(model,
              ranks ? groups_of(*ranks, mp) : groups_of(model, model.checkpoint.model_states[mp]),
              folder.string());
  return model;
}

OpenedUncut open_uncut(const fs::path& folder, int threads, RecordChecksums& checks) {
  OpenedUncut opened;
  std::shared_ptr<const ShardedCheckpoint> ranks;
  if (checkpoint_kind(folder) == Checkpoint::Kind::kOrdinary)
    ranks = std::make_shared<const ShardedCheckpoint>(
        open_sharded_checkpoint(folder, threads, &checks));
  opened.checkpoint = ranks ? checkpoint_of(ranks) : open_checkpoint(folder, threads, &checks);
  require_states(folder, opened.checkpoint.states_refused,
                 "zero_to_fp32 exports the weights alone");
  if (opened.checkpoint.optimizer_state) opened.model = uncut_model(opened.checkpoint, ranks.get());
  return opened;
}

}  // namespace anymesh
