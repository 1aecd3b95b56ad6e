#include <algorithm>
#include <cctype>
#include <set>

#include "framework/format/checkpoint/model.h"
#include "framework/format/dialects/deepspeed_view.h"
#include "framework/format/dialects/foreign.h"
#include "framework/format/io/file_io.h"
#include "framework/format/layout/merge_rules.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Kind = Checkpoint::Kind;

bool has_model_states(const fs::path& folder) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    const auto name = parse_checkpoint_file_name(entry.path().filename().string());
    if (name && name->is_model_states()) return true;
  }
  return false;
}

// Sets a state from the contents of its file in a universal folder: a dict around `param`, or the
// flat tensor alone (ZeRO 3).
void set_state(SavedParameter& parameter, const std::string& state, Value content,
               const Shape* shape) {
  TensorRecord& tensor = parameter.states[state];
  if (content.is_tensor()) {
    tensor = content.as_tensor();
    if (shape && numel(*shape) == tensor.numel()) tensor.shape = *shape;
  } else {
    tensor = content.at(keys::kParam).as_tensor();
    if (content.contains(keys::kWholeState)) return void(parameter.whole.insert(state));
    parameter.keys = content.erase(keys::kParam);
  }
  const auto fp32 = parameter.states.find(kFp32State);
  if (fp32 == parameter.states.end() || tensor.shape == fp32->second.shape) {
    parameter.shape = tensor.shape;
    return;
  }
  if (is_factored(tensor.shape, fp32->second.shape)) return;
  content.fail("a state of shape " + to_string(fp32->second.shape) + ", as of " +
               std::string(kFp32State) + ", not " + to_string(tensor.shape));
}

// Returns ZeRO 3's step, which is in the optimizer's own state dict inside `optimizer_state`.
Value step_of_zero3(const Value& optimizer_state) {
  const Value torch = optimizer_state.find(keys::kOptimizerStateDict);
  const auto states = torch ? torch.at(keys::kState).entries() : std::vector<Value::Entry>{};
  return states.empty() ? Value() : states[0].second.find(kStepState);
}

// Returns the parameter as one shard of one fragment.
ShardsPtr single_shard(const SavedParameter& parameter) {
  ParameterShard shard{.shape = parameter.shape, .step = parameter.step};
  for (const auto& [name, tensor] : parameter.states) {
    ShardState& state = shard.states[name];
    state = {tensor.dtype, {{0, 0, tensor.numel(), tensor.bytes}}};
    if (tensor.shape != parameter.shape) state.factored = tensor.shape;
  }
  return std::make_shared<const std::vector<ParameterShard>>(1, std::move(shard));
}

std::string mesh_of(const Value& metadata) {
  const Degrees degrees = degrees_of(metadata);
  const Value dp = metadata.find(keys::kDpWorldSize);
  return "tp " + std::to_string(degrees.tp) + ", pp " + std::to_string(degrees.pp) +
         (dp ? ", dp " + std::to_string(dp.as_int()) : "");
}

}  // namespace

fs::path resolve_tag(const fs::path& path, const std::string& tag,
                     std::vector<std::string>* notes) {
  if (!tag.empty()) return resolve_tag(folder_of_tag(path, tag, "--tag"), "", notes);
  if (!fs::exists(path / kLatestFile) && is_foreign(path))
    return path;  // a run may have made a universal folder in it
  for (const std::string_view pointer : {kLatestFile, kLatestUniversalFile})
    if (fs::exists(path / pointer))
      return folder_of_tag(path, read_tag(path / pointer), (path / pointer).string());
  if (!fs::is_directory(path) || fs::is_directory(path / kZeroFolder) || has_model_states(path) ||
      !weights_entry(path).empty())
    return path;
  std::vector<std::string> tags;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && !name.ends_with(kTemporarySuffix) && has_model_states(entry.path()))
      tags.push_back(name);
  }
  if (tags.empty()) return path;
  if (tags.size() > 1)
    throw UserError(
        path.string() + ": has no " + std::string(kLatestFile) +
        ", which names a tag, but several tags; give the folder of one: " + joined(tags, ", "));
  if (notes)
    notes->push_back(path.string() + ": has no " + std::string(kLatestFile) +
                     "; the only tag there is used, " + tags[0]);
  return path / tags[0];
}

Kind checkpoint_kind(const fs::path& path) {
  if (fs::exists(path) && !fs::is_directory(path)) {
    const File readable(path);  // throws for a FIFO, say
    return Kind::kWeights;
  }
  if (!fs::exists(path))
    throw UserError(path.string() + ": no such file or folder" + list_parent(path));
  if (fs::is_directory(path / kZeroFolder)) return Kind::kUniversal;
  if (has_model_states(path)) return Kind::kOrdinary;
  if (is_foreign(path)) return Kind::kDcp;
  if (!weights_entry(path).empty()) return Kind::kWeights;
  throw DamagedFile(path.string() +
                    ": is no checkpoint (no latest, no *_model_states.pt, no zero, no "
                    ".metadata, no model.safetensors, no " +
                    std::string(kWeightsFile) + "). It holds: " + list_folder(path));
}

bool Checkpoint::contains(const std::string& name) const {
  return std::binary_search(names_.begin(), names_.end(), name);
}

const std::string& Checkpoint::first_name(const std::string& name) const {
  const auto alias = aliases_.find(name);
  return alias == aliases_.end() ? name : alias->second;
}

SavedParameter Checkpoint::parameter(const std::string& name) const {
  if (!contains(name))
    throw DamagedFile(path.string() + ": has no parameter " + printable(name) + " among its " +
                      std::to_string(names_.size()));
  const std::string& first = first_name(name);
  const auto known = parameters_.find(first);
  SavedParameter parameter = known != parameters_.end() ? known->second
                             : merger_                  ? merger_->merged(first)
                                                        : read_universal(first);
  if (!parameter.step && parameter.has_moments() && numel(parameter.shape) > 0)
    parameter.step = common_step_;
  if (!parameter.shards) parameter.shards = single_shard(parameter);
  return parameter;
}

void Checkpoint::take(const std::shared_ptr<const ShardedCheckpoint>& ranks) {
  path = ranks->folder;
  model_states = ranks->model_states;
  metadata = model_states[0];
  description = (ranks->weights_only
                     ? "weights-only checkpoint of tp "
                     : "ordinary checkpoint of ZeRO " + std::to_string(ranks->stage) + ", tp ") +
                std::to_string(ranks->tp_size) + ", pp " + std::to_string(ranks->pp_size) +
                ", dp " + std::to_string(ranks->dp_size);
  optimizer_state = ranks->optimizer_state;
  states_refused = ranks->states_refused;
  weights_rounded = ranks->weights_rounded;
  const int tp_size = ranks->tp_size;
  UniversalInfo info = merge_info(*ranks);
  merger_ = std::make_shared<Merger>(ranks, std::move(info));
  merger_->merge_all([](const std::string&, const SavedParameter&) {});  // or throws
  names_ = merger_->names();
  add_buffers_of_zero3(tp_size);
}

void Checkpoint::add(const std::string& name, const TensorRecord& tensor) {
  SavedParameter& parameter = parameters_[name];
  parameter.pp_ranks = {0};
  parameter.shape = tensor.shape;
  parameter.states[std::string(kFp32State)] = widened(tensor);
}

// ZeRO 3 has buffers in `module`. DeepSpeed's universal folders have them only in their copies of
// the model-states files.
void Checkpoint::add_buffers_of_zero3(int64_t tp_size) {
  if (!fs::exists(path / zero3_model_states_file(0, 0))) return;
  const std::set<std::string> known(names_.begin(), names_.end());
  for (size_t mp = 0; mp < model_states.size(); mp += static_cast<size_t>(tp_size)) {
    const Value module = model_states[mp].find(keys::kModule).value_or(Value::dict());
    for (const std::string& name : buffer_names(model_states[mp]))
      if (const Value buffer = module.find(name);
          buffer && !known.contains(name) && !parameters_.contains(name))
        add(name, buffer.as_tensor());
  }
}

// ZeRO 3 partitions frozen parameters over the model-states files, as trained parameters over the
// optimizer files. DeepSpeed's universal folders have them only there.
void Checkpoint::add_frozen_of_zero3() {
  const Value frozen = metadata.find(keys::kFrozenParamShapes);
  const std::set<std::string> known(names_.begin(), names_.end());
  const auto names = frozen.value_or(Value::dict()).entries();
  const auto is_known = [&](const auto& entry) { return known.contains(entry.first.as_string()); };
  if (!fs::exists(path / zero3_model_states_file(0, 0)) || std::ranges::all_of(names, is_known))
    return;
  if (fs::exists(path / zero3_model_states_file(0, 1)))
    frozen.refuse("none: how tp or pp cut frozen parameters of ZeRO 3 is not known");
  ShardedCheckpoint ranks{.folder = path, .dp_size = 0, .model_states = {metadata}};
  for (fs::path file; fs::exists(file = path / zero3_model_states_file(ranks.dp_size, 0));
       ++ranks.dp_size) {
    const Value state = ranks.dp_size == 0 ? metadata : read_torch_file(file, checks_);
    ranks.frozen_parts.push_back(state.at(keys::kFrozenParamFragments));
  }
  read_frozen_of_zero3(ranks);
  for (const auto& [name, shards] : ranks.parameters) {
    if (known.contains(name)) continue;
    add(name, shard_tensor(shards[0], kFp32State));
    parameters_[name].shards = std::make_shared<std::vector<ParameterShard>>(shards);
  }
}

void Checkpoint::open_universal() {
  for (int mp = 0;; ++mp) {
    const fs::path plain = path / model_states_file(mp),
                   zero3 = path / zero3_model_states_file(0, mp);
    const bool has_plain = fs::exists(plain);
    if (!has_plain && !fs::exists(zero3)) break;
    model_states.push_back(read_torch_file(has_plain ? plain : zero3, checks_));
  }
  if (model_states.empty()) {
    throw DamagedFile(path.string() +
                      ": has no model-states file of rank 0. It holds: " + list_folder(path));
  }
  metadata = model_states[0];
  description = "universal checkpoint made from " + mesh_of(metadata);
  const fs::path optimizer = path / kZeroFolder / kOptimizerStateFile;
  if (fs::exists(optimizer)) optimizer_state = read_torch_file(optimizer);
  for (const Value& group : metadata.find(keys::kParamShapes).value_or(Value::list()).items())
    for (const auto& [name, shape] : named_shapes(group)) shapes_[name] = shape;
  for (const auto& entry : fs::directory_iterator(path / kZeroFolder)) {
    if (entry.is_directory()) names_.push_back(entry.path().filename());
  }
  const auto has_step = [this](const std::string& name) {
    return fs::exists(path / kZeroFolder / name / state_file(kStepState));
  };
  if (optimizer_state && std::none_of(names_.begin(), names_.end(), has_step))
    common_step_ = step_of_zero3(optimizer_state);
  add_buffers_of_zero3(std::max<int64_t>(1, degrees_of(metadata).tp));
  add_frozen_of_zero3();
}

SavedParameter Checkpoint::read_universal(const std::string& name) const {
  SavedParameter parameter;
  const fs::path folder = path / kZeroFolder / name;
  const auto shape = shapes_.find(name);
  const auto read = [&](const std::string& state) {
    set_state(parameter, state, read_torch_file(folder / state_file(state), checks_),
              shape == shapes_.end() ? nullptr : &shape->second);
  };
  if (!fs::exists(folder / state_file(kFp32State))) {
    throw DamagedFile(folder.string() + ": has no " + state_file(kFp32State) +
                      ". It holds: " + list_folder(folder));
  }
  read(std::string(kFp32State));
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path file = entry.path().filename();
    const std::string state = file.stem();
    if (file.extension() == ".pt" && state != kFp32State && state != kStepState) read(state);
  }
  if (fs::exists(folder / state_file(kStepState)))
    parameter.step = read_torch_file(folder / state_file(kStepState));
  return parameter;
}

void Checkpoint::take(const StoredWeights& weights) {
  kind = Kind::kWeights;
  description = "weights";
  for (const auto& [name, file] : weights.absent)
    throw DamagedFile(file.string() + ": has no " + printable(name) +
                      ", which the index says it has");
  for (const auto& [name, value] : weights.tensors)
    set_state(parameters_[name], std::string(kFp32State), widened(value.as_tensor()), nullptr);
}

void Checkpoint::open_foreign() {
  ForeignModel foreign = read_foreign(path, checks_);
  description = std::move(foreign.description);
  const DcpModel& model = foreign.model;
  states_refused = model.states_refused;
  for (const auto& [name, stored] : model.parameters) {
    SavedParameter& parameter = parameters_[name];
    parameter.shape = stored.weight.shape;
    parameter.states = {{std::string(kFp32State), widened(stored.weight)}};
    for (const auto& [state, tensor] : stored.states) {
      if (state == kStepState)
        parameter.step = tensor;
      else
        parameter.states.emplace(state, widened(tensor));
    }
  }
  const DeepspeedView view = deepspeed_view(model);
  metadata = view.model_states;
  model_states = {metadata};
  optimizer_state = view.optimizer_state;
}

// Lists the names, and makes second names of tied weights aliases. A second name's own tensor, if
// there is one, is only in the model's precision.
void Checkpoint::finish() {
  for (const auto& [name, parameter] : parameters_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
  const Value shared = metadata ? metadata.find(keys::kSharedParams) : Value();
  if (!shared) return;
  for (const auto& [alias, name] : shared.entries()) {
    if (contains(name.as_string())) aliases_[alias.as_string()] = name.as_string();
  }
  for (const auto& [alias, name] : aliases_) names_.push_back(alias);
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
}

Checkpoint open_checkpoint(const fs::path& path, int threads, RecordChecksums* checks) {
  Checkpoint checkpoint;
  checkpoint.checks_ = checks;
  checkpoint.path = resolve_tag(path);
  checkpoint.kind = checkpoint_kind(checkpoint.path);
  switch (checkpoint.kind) {
    case Kind::kOrdinary:
      return checkpoint_of(std::make_shared<const ShardedCheckpoint>(
          open_sharded_checkpoint(checkpoint.path, threads, checks)));
    case Kind::kUniversal:
      checkpoint.open_universal();
      break;
    case Kind::kWeights:
      checkpoint.take(read_weights(checkpoint.path, checks));
      break;
    case Kind::kDcp:
      checkpoint.open_foreign();
      break;
  }
  checkpoint.finish();
  return checkpoint;
}

Checkpoint checkpoint_of(const std::shared_ptr<const ShardedCheckpoint>& ranks) {
  Checkpoint checkpoint;
  checkpoint.take(ranks);
  checkpoint.finish();
  if (!ranks->all_names.empty()) checkpoint.names_ = ranks->all_names;
  return checkpoint;
}

Checkpoint checkpoint_of(const fs::path& path, const StoredWeights& weights) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.take(weights);
  checkpoint.finish();
  return checkpoint;
}

}  // namespace anymesh
