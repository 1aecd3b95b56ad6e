#include "framework/format/whole/checkpoint_reader.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/merge_rules.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/format/whole/convert_plan.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using ReaderKind = CheckpointReader::Kind;

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
void set_state(WholeParameter& parameter, const std::string& state, Value content,
               const Shape* shape) {
  TensorRecord& tensor = parameter.states[state];
  if (content.is_tensor()) {
    tensor = content.as_tensor();
    if (shape && numel(*shape) == tensor.numel()) tensor.shape = *shape;
  } else {
    tensor = content.at(keys::kParam).as_tensor();
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
ParameterShard whole_shard(const WholeParameter& parameter) {
  ParameterShard shard{.shape = parameter.shape, .step = parameter.step};
  for (const auto& [name, tensor] : parameter.states) {
    ShardState& state = shard.states[name];
    state = {tensor.dtype, {{0, 0, tensor.numel(), tensor.bytes}}};
    if (tensor.shape != parameter.shape) state.factored = tensor.shape;
  }
  return shard;
}

// Returns the shards of an untrained parameter, one for each (tp rank, fragment).
std::vector<ParameterShard> untrained_shards(
    const WholeParameter& parameter, const std::vector<std::pair<int, ShardFragment>>& fragments) {
  std::vector<ParameterShard> shards;
  for (const auto& [tp_rank, fragment] : fragments) {
    const ShardLayout slice = ShardLayout::make(parameter.shape, parameter.cut,
                                                static_cast<int>(fragments.size()), tp_rank);
    ParameterShard& shard =
        shards.emplace_back(ParameterShard{.tp_rank = tp_rank, .shape = slice.shard_shape()});
    shard.states[std::string(kFp32State)] = {parameter.weight().dtype, {fragment}};
  }
  return shards;
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

ReaderKind checkpoint_kind(const fs::path& path) {
  if (fs::exists(path) && !fs::is_directory(path)) {
    const File readable(path);  // throws for a FIFO, say
    return ReaderKind::kWeights;
  }
  if (!fs::exists(path))
    throw UserError(path.string() + ": no such file or folder" + list_parent(path));
  if (fs::is_directory(path / kZeroFolder)) return ReaderKind::kUniversal;
  if (has_model_states(path)) return ReaderKind::kOrdinary;
  if (!weights_entry(path).empty()) return ReaderKind::kWeights;
  throw DamagedFile(path.string() +
                    ": is no checkpoint (no latest, no *_model_states.pt, no zero, no "
                    "model.safetensors, no " +
                    std::string(kWeightsFile) + "). It holds: " + list_folder(path));
}

TensorRecord WholeParameter::state(std::string_view name) const {
  const auto found = states.find(name);
  return found == states.end() ? TensorRecord() : found->second;
}

ShardLayout WholeParameter::slice(int tp_rank) const {
  return ShardLayout::make(shape, cut, shards.back().tp_rank + 1, tp_rank);
}

ShardLayout WholeParameter::slice(int tp_rank, int tp_size) const {
  if (tp_size == shards.back().tp_rank + 1) return slice(tp_rank);
  const CutRule rule = tp_size == 1 ? CutRule{.replicated = true} : cut.even();
  return ShardLayout::make(shape, rule, tp_size, tp_rank);
}

bool CheckpointReader::contains(const std::string& name) const {
  return std::binary_search(names_.begin(), names_.end(), name);
}

const std::string& CheckpointReader::first_name(const std::string& name) const {
  const auto alias = aliases_.find(name);
  return alias == aliases_.end() ? name : alias->second;
}

WholeParameter CheckpointReader::parameter(const std::string& name) const {
  if (!contains(name))
    throw DamagedFile(path.string() + ": has no parameter " + printable(name) + " among its " +
                      std::to_string(names_.size()));
  const std::string& first = first_name(name);
  WholeParameter parameter =
      parameters_.contains(first) ? parameters_.at(first) : read_universal(first);
  if (!parameter.step && parameter.has_moments() && numel(parameter.shape) > 0)
    parameter.step = common_step_;
  if (parameter.shards.empty()) parameter.shards = {whole_shard(parameter)};
  return parameter;
}

void CheckpointReader::open_ordinary(int threads) {
  const ShardedCheckpoint source = open_sharded_checkpoint(path, threads, checks_);
  metadata = source.model_states[0];
  description = (source.weights_only
                     ? "weights-only checkpoint of tp "
                     : "ordinary checkpoint of ZeRO " + std::to_string(source.stage) + ", tp ") +
                std::to_string(source.tp_size) + ", pp " + std::to_string(source.pp_size) +
                ", dp " + std::to_string(source.dp_size);
  optimizer_state = source.optimizer_state;
  states_refused = source.states_refused;
  weights_rounded = source.weights_rounded;
  const UniversalInfo info = merge_info(source);
  for (const OutputFilePlan& file : plan_conversion(source, info).files) {
    WholeParameter& parameter = parameters_[file.parameter];
    if (file.state == kStepState) {
      parameter.step = file.content;
      continue;
    }
    const auto shards = source.parameters.find(file.parameter);
    const bool listed = shards != source.parameters.end();
    const Shape* shape = listed ? &shards->second[0].shape : nullptr;
    set_state(parameter, file.state, file.content, shape);
    if (!parameter.shards.empty()) continue;
    parameter.cut = file.cut;
    parameter.averaged = file.rule == kAverageRule;
    if (!listed) {
      parameter.shards = untrained_shards(parameter, file.sources);
      continue;
    }
    parameter.shards = shards->second;
    for (const ParameterShard& shard : parameter.shards)
      if (shard.tp_rank == 0) parameter.pp_ranks.push_back(shard.pp_rank);
  }
  std::vector<Value> stages;
  for (int pp = 0; pp < source.pp_size; ++pp) stages.push_back(source.model_state(pp, 0));
  add_untrained_of_zero3(stages);
}

// ZeRO 3 partitions frozen parameters over the model-states files, as trained parameters over the
// optimizer files. Buffers are in `module`. DeepSpeed's universal folders have both only in their
// copies of the model-states files.
void CheckpointReader::add_untrained_of_zero3(const std::vector<Value>& stages) {
  if (!fs::exists(path / zero3_model_states_file(0, 0))) return;
  const auto add = [&](const std::string& name, const TensorRecord& tensor) {
    WholeParameter& parameter = parameters_[name];
    parameter.pp_ranks = {0};
    parameter.shape = tensor.shape;
    parameter.states[std::string(kFp32State)] = widened(tensor);
  };
  const std::set<std::string> folders(names_.begin(), names_.end());  // empty unless universal
  const auto is_known = [&](const std::string& name) {
    return parameters_.contains(name) || folders.contains(name);
  };
  for (const Value& state : stages) {
    const Value buffers = state.find(keys::kBufferNames).value_or(Value::list()),
                module = state.find(keys::kModule).value_or(Value::dict());
    for (const std::string& name : buffers.as_strings()) {
      if (const Value buffer = module.find(name); buffer && !is_known(name))
        add(name, buffer.as_tensor());
    }
  }
  const Value frozen = metadata.find(keys::kFrozenParamShapes);
  const auto names = frozen.value_or(Value::dict()).entries();
  if (std::all_of(names.begin(), names.end(),
                  [&](const auto& entry) { return is_known(entry.first.as_string()); }))
    return;
  if (fs::exists(path / zero3_model_states_file(0, 1)))
    frozen.refuse("none: how tp or pp cut frozen parameters of ZeRO 3 is not known");
  ShardedCheckpoint source{.folder = path, .dp_size = 0, .model_states = {metadata}};
  for (fs::path file; fs::exists(file = path / zero3_model_states_file(source.dp_size, 0));
       ++source.dp_size)
    source.metadata_files.push_back(file);
  read_frozen_of_zero3(source, checks_);
  for (const auto& [name, shards] : source.parameters) {
    const ParameterShard& shard = shards[0];
    if (is_known(name)) continue;
    add(name, shard_tensor(shard, kFp32State));
    parameters_[name].shards = shards;
  }
}

void CheckpointReader::open_universal() {
  for (const std::string& name : {model_states_file(0), zero3_model_states_file(0, 0)}) {
    if (!metadata && fs::exists(path / name)) metadata = read_torch_file(path / name);
  }
  if (!metadata) {
    throw DamagedFile(path.string() +
                      ": has no model-states file of rank 0. It holds: " + list_folder(path));
  }
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
  std::vector<Value> stages{metadata};
  const int64_t tp = degrees_of(metadata).tp;
  for (int64_t mp = tp; tp > 0 && mp < 1 << 16; mp += tp) {
    const fs::path file = path / zero3_model_states_file(0, static_cast<int>(mp));
    if (!fs::exists(file)) break;
    stages.push_back(read_torch_file(file, checks_));
  }
  add_untrained_of_zero3(stages);
}

WholeParameter CheckpointReader::read_universal(const std::string& name) const {
  WholeParameter parameter;
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

void CheckpointReader::take(const StoredWeights& weights) {
  kind = ReaderKind::kWeights;
  description = "weights";
  for (const auto& [name, file] : weights.absent)
    throw DamagedFile(file.string() + ": has no " + printable(name) +
                      ", which the index says it has");
  for (const auto& [name, value] : weights.tensors)
    set_state(parameters_[name], std::string(kFp32State), widened(value.as_tensor()), nullptr);
}

// Lists the names, and makes second names of tied weights aliases. A second name's own tensor, if
// there is one, is only in the model's precision.
void CheckpointReader::finish() {
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

CheckpointReader open_checkpoint(const fs::path& path, int threads, RecordChecksums* checks) {
  CheckpointReader checkpoint;
  checkpoint.checks_ = checks;
  checkpoint.path = resolve_tag(path);
  checkpoint.kind = checkpoint_kind(checkpoint.path);
  switch (checkpoint.kind) {
    case ReaderKind::kOrdinary:
      checkpoint.open_ordinary(threads);
      break;
    case ReaderKind::kUniversal:
      checkpoint.open_universal();
      break;
    case ReaderKind::kWeights:
      checkpoint.take(read_weights(checkpoint.path, checks));
      break;
  }
  checkpoint.finish();
  return checkpoint;
}

CheckpointReader reader_of(const fs::path& path, const StoredWeights& weights) {
  CheckpointReader checkpoint;
  checkpoint.path = path;
  checkpoint.take(weights);
  checkpoint.finish();
  return checkpoint;
}

}  // namespace anymesh
