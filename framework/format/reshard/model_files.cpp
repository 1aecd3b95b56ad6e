#include "framework/format/reshard/model_files.h"

#include <algorithm>

#include "framework/format/layout/partition.h"
#include "framework/format/sharded/tensor_views.h"

namespace anymesh {
namespace {

using Tensors = std::map<std::string, TensorRecord>;

// Returns `module`, which may be nested, with these tensors and no others.
Value with_tensors(const Value& module, const std::string& prefix, const Tensors& tensors) {
  Value result = module;
  for (const auto& [key, value] : module.entries()) {
    if (!key.is_string()) continue;
    const std::string name = prefix + key.as_string();
    if (value.is_dict()) result.set(key.as_string(), with_tensors(value, name + ".", tensors));
    if (!value.is_tensor()) continue;
    const auto tensor = tensors.find(name);
    tensor == tensors.end() ? result.erase(key.as_string())
                            : result.set(key.as_string(), tensor->second);
  }
  return result;
}

// Returns the rank's `module`: None with a pipeline, whose weights are in layer files. The module
// of a rank with new tensors may be flat, and is one where the source's has none. ZeRO 3 has
// placeholders of parameters.
Value module_of(const RankModel& rank, const CheckpointMesh& mesh) {
  if (rank.module.empty()) return {};
  Tensors tensors(rank.module.begin(), rank.module.end());
  for (auto& [name, tensor] : tensors)
    if (mesh.stage == 3 && !rank.buffers.contains(name))
      tensor = {tensor.dtype, {0}, tensor.requires_grad, zeros(0)};
  const Value module = rank.model_state.at(keys::kModule);
  if (module) return with_tensors(module, "", tensors);
  std::vector<Value::Entry> entries;
  for (const auto& [name, tensor] : rank.module) entries.emplace_back(name, tensors.at(name));
  return Value::ordered_dict(std::move(entries));
}

// Returns a dp rank's part of a frozen parameter: the whole at ZeRO 2; at ZeRO 3 as many elements
// on every rank.
TensorRecord frozen_part(const TensorRecord& tensor, const CheckpointMesh& mesh, int dp_rank) {
  if (mesh.stage == 2) return tensor;
  const int64_t part = zero3_part_numel(tensor.numel(), mesh.dp_size);
  const auto [begin, held] = zero3_part(tensor.numel(), dp_rank, mesh.dp_size);
  const auto padding = static_cast<uint64_t>(part - held) * element_size(tensor.dtype);
  const std::vector<ShardFragment> both{{0, 0, held, tensor.slice(begin, {held}).bytes},
                                        {0, held, part - held, zeros(padding)}};
  return {tensor.dtype, {part}, false, joined({part}, both, tensor.dtype)};
}

// Returns the two dicts of frozen parameters. ZeRO 2 and 3 list them, unless the source left them
// out on purpose (exclude_frozen_parameters).
std::pair<Value, Value> frozen_of(const RankModel& rank, const CheckpointMesh& mesh, int dp_rank) {
  if (mesh.stage < 2 || rank.excludes_frozen) return {};
  std::vector<Value::Entry> shapes, parts;
  for (const auto& [name, tensor] : rank.frozen) {
    shapes.emplace_back(name, Value::size(tensor.shape));
    parts.emplace_back(name, frozen_part(tensor, mesh, dp_rank));
  }
  return {Value::ordered_dict(std::move(shapes)), Value::ordered_dict(std::move(parts))};
}

// Returns Megatron's arguments of a run on the new mesh.
Value args_for(Value args, const CheckpointMesh& mesh) {
  const std::pair<const char*, int> sizes[] = {
      {"tensor_model_parallel_size", mesh.tp_size},
      {"pipeline_model_parallel_size", mesh.pp_size},
      {"data_parallel_size", mesh.dp_size},
      {"world_size", mesh.tp_size * mesh.pp_size * mesh.dp_size},
      {"zero_stage", mesh.stage},
      {"expert_model_parallel_size", mesh.ep_size}};
  for (const auto& [name, size] : sizes)
    if (args.find(name).is_int()) args.set(name, size);
  const std::pair<std::string_view, DType> precisions[] = {{keys::kBf16, DType::kBFloat16},
                                                           {keys::kFp16, DType::kFloat16}};
  for (const auto& [name, dtype] : precisions)
    if (args.find(name).kind() == Value::Kind::kBool) args.set(name, mesh.dtype == dtype);
  if (args.find("params_dtype")) args.set("params_dtype", Value::dtype(mesh.dtype));
  return args;
}

// Only the first rank of all has the names of tied parameters.
Value shared_of(const RankModel& rank, const CheckpointMesh& mesh, int dp_rank) {
  if (mesh.stage == 0) return {};
  std::vector<Value::Entry> shared;
  if (rank.pp_rank == 0 && rank.tp_rank == 0 && dp_rank == 0)
    for (const auto& [second, first] : rank.shared) shared.emplace_back(second, first);
  return Value::dict(std::move(shared));
}

}  // namespace

Value model_states(const RankModel& rank, const CheckpointMesh& mesh, const Value& config,
                   const OptimizerFiles& optimizer, int dp_rank) {
  Value state = rank.model_state;
  const ExpertSpread& experts = optimizer.experts();
  state.set(keys::kModule, module_of(rank, mesh));
  const auto [shapes, parts] = frozen_of(rank, mesh, dp_rank);
  const bool has_whole = mesh.stage == 0 && experts.layers.empty();
  state.set(keys::kOptimizer, has_whole ? optimizer.whole_state() : Value())
      .set(keys::kParamShapes, optimizer.param_shapes())
      .set(keys::kFrozenParamShapes, shapes)
      .set(keys::kSharedParams, shared_of(rank, mesh, dp_rank))
      .set(keys::kFrozenParamFragments, parts)
      .set(keys::kDpWorldSize, mesh.dp_size)
      .set(keys::kMpWorldSize, mesh.tp_size * mesh.pp_size);
  if (!experts.layers.empty()) {
    state.erase(keys::kWholeExperts);
    experts.record(state, experts.rank_of(dp_rank, mesh.dp_size, rank.tp_rank, mesh.tp_size),
                   mesh.stage == 3);
  }
  if (state.contains(keys::kParallelDimensions))
    state.set(keys::kParallelDimensions,
              Value::dict({{keys::kPpDegree, mesh.pp_size}, {keys::kTpDegree, mesh.tp_size}}));
  if (state.contains(keys::kDsConfig)) state.set(keys::kDsConfig, config);
  if (const Value args = state.find(keys::kArgs)) state.set(keys::kArgs, args_for(args, mesh));
  return state;
}

Value config_for(Value config, const CheckpointMesh& from, const CheckpointMesh& to,
                 std::vector<std::string>& notes) {
  if (!config.is_dict()) return config;
  const auto set = [&](std::string_view section, std::string_view key, const Value& value) {
    Value changed = config.find(section);
    if (!changed.is_dict()) changed = Value::dict();
    config.set(section, changed.set(key, value));
  };
  if (from.stage != to.stage) set(keys::kZeroOptimization, keys::kStage, to.stage);
  if (from.dtype != to.dtype) {
    set(keys::kBf16, keys::kEnabled, to.dtype == DType::kBFloat16);
    set(keys::kFp16, keys::kEnabled, to.dtype == DType::kFloat16);
  }
  const Value batch = config.find("train_batch_size"),
              micro = config.find("train_micro_batch_size_per_gpu");
  if (from.dp_size == to.dp_size || !batch.is_int() || !micro.is_int()) return config;
  const int64_t each = micro.as_int() * to.dp_size;
  if (each > 0 && batch.as_int() % each == 0) {
    if (config.find("gradient_accumulation_steps").is_int())
      config.set("gradient_accumulation_steps", batch.as_int() / each);
  } else {
    notes.push_back("ds_config: train_batch_size " + batch.found() +
                    " is no multiple of train_micro_batch_size_per_gpu " + micro.found() +
                    " times dp " + std::to_string(to.dp_size) +
                    "; the next job's own config decides, this one is a record");
  }
  return config;
}

}  // namespace anymesh
