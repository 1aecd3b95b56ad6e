#include "framework/format/reshard/rank_model.h"

#include <algorithm>

#include "framework/format/layout/partition.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

using Parameter = RankModel::Parameter;
using Group = RankModel::Group;

// Returns the state dict of torch's optimizer inside DeepSpeed's.
Value torch_state(const ShardedCheckpoint& source, size_t mp) {
  const Value& optimizer = source.optimizers[mp];
  return source.stage == 0 && !is_partitioned(source)
             ? optimizer.find(keys::kOptimizerStateDict).value_or(optimizer)
         : source.stage == 3 ? optimizer.at(keys::kOptimizerStateDict)
                             : base_state_of(optimizer);
}

// Returns the parameter's shard on a rank, checked to be complete.
Parameter parameter_of(const ShardedCheckpoint& source, const std::string& name, int pp, int tp) {
  const auto shards = source.parameters.find(name);
  if (name.empty() || shards == source.parameters.end())
    throw Unreadable(source.folder.string() +
                     ": which parameter each state of the optimizer is of "
                     "cannot be known");
  const auto shard = std::ranges::find_if(shards->second, [&](const ParameterShard& each) {
    return each.pp_rank == pp && each.tp_rank == tp;
  });
  if (shard == shards->second.end())
    throw DamagedFile(source.folder.string() + ": pp rank " + std::to_string(pp) + ", tp rank " +
                      std::to_string(tp) + " does not have " + printable(name));
  Parameter parameter{name, shard->shape, {}, shard->step, shard->numbers};
  for (const auto& [state, held] : shard->states) {
    check_covered(name, *shard, state);
    parameter.states[state] = shard_tensor(*shard, state);
  }
  return parameter;
}

std::vector<Group> groups_of(const ShardedCheckpoint& source, int pp, int tp) {
  const auto mp = static_cast<size_t>(pp * source.tp_size + tp);
  const Value torch = torch_state(source, mp), all = torch.at(keys::kParamGroups);
  const auto& names = source.groups[mp];
  if (all.size() != names.size()) all.fail(std::to_string(names.size()) + " groups");
  std::vector<Group> groups;
  for (size_t g = 0; g < names.size(); ++g) {
    Group& group = groups.emplace_back(Group{{}, all.at(g), {}});
    const std::vector<int64_t> params = group.settings.at(keys::kParams).as_ints();
    if (!params.empty()) group.entry = torch.at(keys::kState).find(params[0]);
    for (const std::string& name :
         optimizers_order(names[g], source.model_states[mp], source.optimizers[mp], source.dp_size))
      group.parameters.push_back(parameter_of(source, name, pp, tp));
    group.experts = !group.parameters.empty() && source.experts.layer_of(group.parameters[0].name);
  }
  return groups;
}

// Returns the second names of tied parameters. ZeRO 0 does not record them: they are the same
// memory.
std::map<std::string, std::string> shared_names(const ShardedCheckpoint& source,
                                                const RankModel& rank) {
  const Value& state = source.model_states[0];
  if (state.find(keys::kSharedParams)) return recorded_shared(state);
  std::map<std::string, std::string> shared;
  std::map<const ByteSource*, std::string> first;
  for (const auto& [name, tensor] : rank.module) {
    if (rank.buffers.contains(name) || tensor.numel() == 0) continue;
    const auto [known, is_new] = first.try_emplace(tensor.bytes.get(), name);
    if (!is_new) shared[name] = known->second;
  }
  return shared;
}

// Returns the parameters that the model has and the optimizer has not. With a pipeline and at ZeRO
// 3 they are listed.
NamedTensors frozen_parameters(const ShardedCheckpoint& source, const RankModel& rank) {
  const auto trained = rank.masters();
  std::set<std::string> listed;
  const Value list = rank.model_state.find(keys::kFrozenParamShapes);
  for (const auto& [name, shape] : list.value_or(Value::dict()).entries())
    listed.insert(name.as_string());
  const bool pipeline = rank.module.empty(), is_listed = pipeline || source.stage == 3;
  const auto tp = static_cast<size_t>(rank.tp_rank);
  const NamedTensors none;
  NamedTensors frozen;
  for (const auto& [name, tensor] : !pipeline        ? rank.module
                                    : listed.empty() ? none
                                                     : source.model_tensors[tp]) {
    const bool is_frozen = is_listed ? listed.contains(name)
                                     : !trained.contains(name) && !rank.buffers.contains(name) &&
                                           !rank.shared.contains(name);
    if (is_frozen) frozen.emplace_back(name, tensor);
  }
  return frozen;
}

// Whether frozen parameters were left out. ZeRO 2 and 3 list none then. The other stages never list
// them; but a second name may be there whose first is not, and a model without any that is frozen
// loads as well without the list.
bool excludes_frozen(const ShardedCheckpoint& source, const RankModel& rank) {
  if (source.stage >= 2) return rank.model_state.find(keys::kFrozenParamShapes).is_none();
  std::set<std::string> names;
  for (const auto& [name, tensor] : rank.module) names.insert(name);
  return rank.frozen.empty() || std::ranges::any_of(rank.shared, [&](const auto& alias) {
           return names.contains(alias.first) && !names.contains(alias.second);
         });
}

// Gives the tensors of `module` and `frozen` their elements, where ZeRO 3 leaves them out, and
// their precision. Weights that change their precision are rounded from their masters. Buffers stay
// as they are: DeepSpeed does not cast them. Placeholders without elements anywhere, which are
// second names of parameters that were left out, are for ZeRO 3 alone.
void fill_module(const ShardedCheckpoint& source, RankModel& rank, DType from,
                 const CheckpointMesh& mesh) {
  const DType to = mesh.dtype;
  std::map<std::string, TensorRecord> masters = rank.masters(), filled;
  if (source.stage == 3) {  // also its frozen parameters are cut among dp ranks
    for (const auto& [name, tensor] : rank.frozen)
      masters[name] = parameter_of(source, name, rank.pp_rank, rank.tp_rank).states.at("fp32");
  }
  if (source.stage == 3 && mesh.stage < 3)
    std::erase_if(rank.module, [&](const auto& entry) {
      return !rank.buffers.contains(entry.first) && !masters.contains(rank.first_name(entry.first));
    });
  for (auto& [name, tensor] : rank.module) {
    const bool changes = from != to && tensor.dtype == from && !rank.buffers.contains(name);
    const DType dtype = changes ? to : tensor.dtype;
    const auto [known, is_new] = filled.try_emplace(rank.first_name(name), tensor);
    if (is_new) {
      const auto master = masters.find(known->first);
      if (master != masters.end() && (source.stage == 3 || changes)) {
        known->second = is_floating(dtype) ? rounded(master->second, dtype) : master->second;
      } else if (changes) {
        known->second = rounded(tensor, dtype);
      }
      known->second.requires_grad = tensor.requires_grad;
    }
    tensor = known->second;
  }
  for (auto& [name, tensor] : rank.frozen) {  // a pipeline has no module
    const auto known = filled.find(name);
    if (known != filled.end()) {
      tensor = known->second;
    } else if (from != to && tensor.dtype == from) {
      tensor = rounded(tensor, to);
    }
  }
}

}  // namespace

const std::string& RankModel::first_name(const std::string& name) const {
  const auto alias = shared.find(name);
  return alias == shared.end() ? name : alias->second;
}

std::map<std::string, TensorRecord> RankModel::masters() const {
  std::map<std::string, TensorRecord> masters;
  for (const Group& group : groups)
    for (const Parameter& parameter : group.parameters)
      masters[parameter.name] = parameter.states.find(kFp32State)->second;
  return masters;
}

std::map<std::string, std::string> recorded_shared(const Value& model_state) {
  std::map<std::string, std::string> shared;
  const Value recorded = model_state.find(keys::kSharedParams).value_or(Value::dict());
  for (const auto& [second, first] : recorded.entries())
    shared[second.as_string()] = first.as_string();
  return shared;
}

bool is_partitioned(const ShardedCheckpoint& source) {
  return source.stage > 0 ||
         (!source.optimizers.empty() && source.optimizers[0].find(keys::kBaseOptimizerState));
}

CheckpointMesh mesh_of(const ShardedCheckpoint& source) {
  return {source.tp_size,
          source.pp_size,
          source.dp_size,
          source.stage,
          model_dtype(source.model_states[0], source.model_tensors),
          source.experts.ep_size};
}

DType model_dtype(const Value& state, const std::vector<NamedTensors>& layers) {
  const Value config = state.find(keys::kDsConfig);
  for (const auto& [key, dtype] :
       {std::pair(keys::kBf16, DType::kBFloat16), std::pair(keys::kFp16, DType::kFloat16)}) {
    const Value enabled = config_entry(config, key, keys::kEnabled);
    if (enabled.kind() == Value::Kind::kBool && enabled.as_bool()) return dtype;
  }
  const std::set<std::string> buffers = buffer_names(state);
  for (const auto& [name, tensor] : module_tensors(state))
    if (!buffers.contains(name) && is_floating(tensor.dtype)) return tensor.dtype;
  for (const NamedTensors& tensors : layers)
    for (const auto& [name, tensor] : tensors)
      if (is_floating(tensor.dtype)) return tensor.dtype;
  return DType::kFloat32;
}

std::vector<std::string> optimizers_order(const std::vector<std::string>& names,
                                          const Value& model_state, const Value& optimizer,
                                          int dp_size) {
  const Value stage = optimizer.find(keys::kZeroStage);
  const bool is_flat = stage && (zero_stage_of(stage) == 1 || zero_stage_of(stage) == 2);
  if (!is_flat || !round_robin_gradients(model_state).as_bool()) return names;
  const std::vector<size_t> order = round_robin_order(names.size(), dp_size);
  std::vector<std::string> result(names.size());
  for (size_t i = 0; i < names.size(); ++i) result[order[i]] = names[i];
  return result;
}

void add_experts(
    RankModel& rank, const CheckpointMesh& to,
    const std::function<TensorRecord(const TensorRecord&, const std::string&)>& weight) {
  std::set<std::string> in_module;
  for (const auto& [name, tensor] : rank.module) in_module.insert(name);
  std::set<std::string> names;
  for (const Group& group : rank.groups) {
    if (!group.experts) continue;
    for (const Parameter& parameter : group.parameters) {
      names.insert(parameter.name);
      const TensorRecord tensor = weight(parameter.states.find(kFp32State)->second, parameter.name);
      rank.experts.emplace_back(parameter.name, tensor);
      if (to.stage == 3 && !in_module.contains(parameter.name) && !rank.module.empty())
        rank.module.emplace_back(parameter.name, tensor);
    }
  }
  if (to.stage < 3)
    std::erase_if(rank.module, [&](const auto& entry) { return names.contains(entry.first); });
}

std::vector<RankModel> rank_models(const ShardedCheckpoint& source, const CheckpointMesh& to) {
  const DType from = mesh_of(source).dtype;
  std::vector<RankModel> ranks;
  for (int pp = 0; pp < source.pp_size; ++pp) {
    for (int tp = 0; tp < source.tp_size; ++tp) {
      RankModel& rank = ranks.emplace_back(RankModel{.pp_rank = pp, .tp_rank = tp});
      rank.model_state = source.model_state(pp, tp);
      rank.groups = groups_of(source, pp, tp);
      rank.module = module_tensors(rank.model_state);
      rank.buffers = buffer_names(rank.model_state);
      rank.shared = shared_names(source, rank);
      rank.frozen = frozen_parameters(source, rank);
      rank.excludes_frozen = excludes_frozen(source, rank);
      fill_module(source, rank, from, to);
      add_experts(rank, to, [&](const TensorRecord& master, const std::string& name) {
        if (from == to.dtype && !source.model_tensors.empty())
          for (const auto& [held, tensor] : source.model_tensors[static_cast<size_t>(tp)])
            if (held == name) return tensor;
        return rounded(master, to.dtype);
      });
    }
  }
  return ranks;
}

NamedFiles recast_layer_files(const ShardedCheckpoint& source, const std::vector<RankModel>& ranks,
                              DType to) {
  const DType from = mesh_of(source).dtype;
  const std::set<std::string> buffers = buffer_names(source);
  std::map<int, std::map<std::string, TensorRecord>> masters;  // by tp rank
  // Stages may share a parameter; the first of them saved the layer's file.
  for (const RankModel& rank : ranks) masters[rank.tp_rank].merge(rank.masters());
  NamedFiles files;
  for (const LayerFile& layer : source.layers) {
    const auto& own = masters[layer.tp_rank];
    Value contents = layer.contents;
    for (const auto& [key, value] : layer.contents.entries()) {
      const std::string name = layer.prefix + key.as_string();
      if (!value.is_tensor() || value.as_tensor().dtype != from || buffers.contains(name)) continue;
      const auto master = own.find(name);
      contents.set(key.as_string(),
                   rounded(master == own.end() ? value.as_tensor() : master->second, to));
    }
    files.emplace_back(layer.path.filename(), contents);
  }
  return files;
}

}  // namespace anymesh
