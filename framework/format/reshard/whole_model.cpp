#include "framework/format/reshard/whole_model.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>

#include "framework/format/sharded/stages.h"
#include "framework/format/torch_file/torch_file.h"
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
Groups groups_of(const WholeModel& model, const Value& state) {
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
      for (std::string& name : optimizers_order(names_of(named_shapes(shapes.at(taken++))), state,
                                                model.optimizer_state, model.mesh.dp_size))
        groups[g].push_back(std::move(name));
  }
  if (taken != shapes.size()) shapes.fail(std::to_string(taken) + " groups, as of the optimizer");
  return groups;
}

// Adds the groups of a stage. Stages share tied parameters.
void add_stage(WholeModel& model, const Groups& stage, const std::string& where) {
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

WholeModel open_whole_model(const fs::path& folder, int threads, RecordChecksums& checks,
                            const ShardedCheckpoint* ordinary) {
  WholeModel model{.checkpoint = open_checkpoint(folder, threads, &checks)};
  const Value& first = model.checkpoint.metadata;
  require_states(folder, model.checkpoint.states_refused, "zero_to_fp32 exports the weights alone");
  model.optimizer_state = model.checkpoint.optimizer_state;
  if (!model.optimizer_state) throw Unreadable(folder.string() + ": has no optimizer's state");
  CheckpointMesh& mesh = model.mesh;
  if (ordinary) {
    mesh = mesh_of(*ordinary);
    model.model_states = ordinary->model_states;
  } else {
    mesh.stage = zero_stage_of(model.optimizer_state.find(keys::kZeroStage).value_or(1));
    const Value counts = model.optimizer_state.find(keys::kPartitionCount),
                count = counts.is_list() && counts.size() > 0 ? counts.at(0) : counts;
    mesh.dp_size =
        static_cast<int>(first.find(keys::kDpWorldSize).value_or(count).value_or(1).as_int());
    const auto [tp, pp] = degrees_of(first);
    if (tp < 1 || pp < 1 || tp > 1 << 16 || pp > 1 << 16)
      first.find(keys::kParallelDimensions).fail("plausible degrees");
    mesh.tp_size = static_cast<int>(tp);
    mesh.pp_size = static_cast<int>(pp);
    mesh.dtype = model_dtype(first, {});
  }
  for (int mp = 0; !ordinary && mp < mesh.tp_size * mesh.pp_size; ++mp) {
    const fs::path plain = folder / model_states_file(mp),
                   zero3 = folder / zero3_model_states_file(0, mp);
    model.model_states.push_back(read_torch_file(fs::exists(plain) ? plain : zero3, &checks));
  }
  mesh.ep_size = ExpertSpread::from(model.model_states).ep_size;
  const Value inner = model.optimizer_state.find(keys::kOptimizerStateDict).value_or(Value::dict()),
              groups = inner.find(keys::kParamGroups)
                           .value_or(model.optimizer_state.at(keys::kParamGroups));
  check_hyperparameters(groups, folder);
  model.settings = groups.items();
  const Value states = inner.find(keys::kState).value_or(Value::dict());
  for (const Value& settings : model.settings) {
    const Value params = settings.at(keys::kParams);
    model.numbers.push_back(params.size() > 0 ? states.find(params.at(0).as_int()) : Value());
  }
  model.groups.resize(model.settings.size());
  for (int pp = 0; pp < mesh.pp_size; ++pp) {  // by tp rank 0
    const auto mp = static_cast<size_t>(pp * mesh.tp_size);
    add_stage(model, ordinary ? groups_of(*ordinary, mp) : groups_of(model, model.model_states[mp]),
              folder.string());
  }
  return model;
}

}  // namespace anymesh
