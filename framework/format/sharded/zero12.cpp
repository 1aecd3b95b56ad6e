// ZeRO 1, 2 and BF16_Optimizer: each group's flat buffer holds its parameters one after the other
// and is partitioned among dp ranks.

#include "framework/format/layout/partition.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using GroupShapes = std::vector<NamedShape>;

// Throws unless param_slice_mappings agrees with the computed fragments.
void check_mapping(const Value& mapping, const GroupShapes& group,
                   const std::vector<Fragment>& fragments) {
  if (mapping.size() != fragments.size())
    mapping.fail("fragments of " + std::to_string(fragments.size()) + " parameters");
  const auto entries = mapping.entries();
  for (size_t i = 0; i < fragments.size(); ++i) {
    const Fragment& fragment = fragments[i];
    const auto& [name, address] = entries[i];
    if (name != Value(group[fragment.param].name))
      address.fail("'" + group[fragment.param].name + "' here, as in param_shapes");
    const int64_t count = address.at(keys::kNumel).as_int(),
                  start = address.at(keys::kStart).as_int();
    if (count == fragment.numel && start == fragment.partition_start) continue;
    throw DamagedFile(address.where() + ": says " + std::to_string(count) + " elements at " +
                      std::to_string(start) + ", but the parameters before it put " +
                      std::to_string(fragment.numel) + " at " +
                      std::to_string(fragment.partition_start));
  }
}

// Returns the number of zeros after each parameter of group `g`; empty if none are recorded.
std::vector<int64_t> alignment_gaps(const Value& state, size_t g, const GroupShapes& group) {
  constexpr int64_t kMostAligned = 1 << 30;
  const Value all = state.find(keys::kParamAlignmentPaddings);
  if (!all) return {};
  const Value paddings = all.at(g);
  if (paddings.size() != group.size())
    paddings.fail("one for each of " + std::to_string(group.size()) + " parameters");
  for (const Value& padding : paddings.items())
    if (padding.as_int() < 0 || padding.as_int() > kMostAligned)
      padding.fail("0 to " + std::to_string(kMostAligned) + " elements");
  return paddings.as_ints();
}

FlatGroup layout_of(const Value& state, size_t g, const GroupShapes& group, int dp_size) {
  std::vector<int64_t> numels;
  for (const NamedShape& parameter : group) numels.push_back(numel(parameter.shape));
  try {
    return FlatGroup(numels, dp_size, alignment_gaps(state, g, group));
  } catch (const std::invalid_argument& error) {
    throw DamagedFile(state.where() + ": " + error.what());
  }
}

// Returns the base optimizer's state of one group, and its param group. Elastic checkpoints
// ("elastic_checkpoint": true) have a list of states with unpadded tensors.
std::pair<Value, Value> group_state(const Value& state, size_t g) {
  const Value base = state.find(keys::kBaseOptimizerState), none = Value::dict();
  if (base.is_list())
    return {base.at(g), Value::dict({{kStepState, state.find(keys::kBaseOptimizerStateStep)}})};
  const Value states = base.is_dict() ? base.find(keys::kState) : Value();
  if (!states.is_dict()) return {Value("no state of an optimizer").named(state.where()), none};
  const Value groups = base.find(keys::kParamGroups);
  return {entry_of(states, g), groups.is_list() ? groups.at(g) : none};
}

// Reads one group of one rank: all fragments of all states.
void read_group(ShardedCheckpoint& source, const Value& state, size_t g, const GroupShapes& group,
                int dp, int mp, bool check_mappings) {
  const FlatGroup layout = layout_of(state, g, group, source.dp_size);
  const std::vector<Fragment> fragments = layout.fragments(dp);
  const Value mappings = state.find(keys::kParamSliceMappings);  // older versions have none
  if (mappings && check_mappings) check_mapping(mappings.at(g), group, fragments);
  const Value fp32 = state.at(keys::kFp32Groups).at(g);
  const int64_t padded = layout.partition_numel();
  const auto [entry, param_group] = group_state(state, g);
  const OptimizerStates states =
      states_of(source, entry, param_group, {padded, padded - layout.padding(dp)});
  for (const Fragment& fragment : fragments) {
    const auto& [name, shape] = group[fragment.param];
    ParameterShard& shard = shard_of(source, name, mp, shape);
    add_fragments(shard, dp, fp32, states, fragment.partition_start, fragment.param_start,
                  fragment.numel);
    set_step(shard, name, states.step);
  }
}

// With round_robin_gradients, DeepSpeed records an order in param_slice_mappings that is not the
// one on disk. The order on disk is param_shapes'. Throws unless all masters, in that order, round
// to the model's weights.
void check_weights(const ShardedCheckpoint& source) {
  std::vector<Weights> ranks;
  for (const NamedTensors& tensors : source.model_tensors)
    ranks.emplace_back(tensors.begin(), tensors.end());
  for (const auto& [name, shards] : source.parameters) {
    for (const ParameterShard& shard : shards) {
      const Weights& weights = ranks[static_cast<size_t>(shard.tp_rank)];
      const auto weight = weights.find(name);
      if (weight != weights.end() && rounds_to(shard_tensor(shard, kFp32State), weight->second))
        continue;
      throw DamagedFile(source.folder.string() + ": " + name +
                        ": its masters do not round to the model's weights, so their order is not "
                        "known (round_robin_gradients)");
    }
  }
}

// Returns the optimizer state as ds_to_universal leaves it: without the entries that are in the
// parameters' own files, and with zero paddings.
Value universal_optimizer_state(const Value& state, int dp_size) {
  Value result = state;
  const Value base = state.at(keys::kBaseOptimizerState);
  Value groups = base.is_list() ? Value::list() : base.at(keys::kParamGroups);
  for (size_t g = 0; base.is_list() && g < base.size(); ++g)
    groups.push_back(Value::dict({{keys::kParams, Value::list({static_cast<int64_t>(g)})}}));
  result.erase(keys::kBaseOptimizerState).erase(keys::kParamSliceMappings).erase(keys::kFp32Groups);
  result.set(keys::kParamGroups, groups);
  const std::vector<int64_t> zeros(groups.size(), 0), counts(groups.size(), dp_size);
  if (state.find(keys::kGroupPaddings)) result.set(keys::kGroupPaddings, Value::list_of(zeros));
  result.set(keys::kPartitionCount, Value::list_of(counts));
  return result;
}

}  // namespace

void read_zero12(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  const int mp_size = source.tp_size * source.pp_size;
  const bool round_robin = round_robin_gradients(optimizers[0]).as_bool();
  for (int mp = 0; mp < mp_size; ++mp) {
    const Value shapes = source.model_states[static_cast<size_t>(mp)].at(keys::kParamShapes);
    if (!shapes) {  // BF16_Optimizer at ZeRO 0
      source.parameters.clear();
      source.states_refused = shapes.where() +
                              ": is None, so that nothing says which partition "
                              "has which parameters";
      return read_weights(source);
    }
    std::vector<GroupShapes> groups;
    auto& names = source.groups.emplace_back();
    for (const Value& dict : shapes.items())
      names.push_back(names_of(groups.emplace_back(named_shapes(dict))));
    source.optimizers.push_back(optimizers[static_cast<size_t>(mp)].at(keys::kOptimizerStateDict));
    for (int dp = 0; dp < source.dp_size; ++dp) {
      const Value& file = optimizers[static_cast<size_t>(dp * mp_size + mp)];
      const Value state = file.at(keys::kOptimizerStateDict);
      const Value fp32 = state.at(keys::kFp32Groups);
      if (fp32.size() != groups.size())
        fp32.fail("partitions of " + std::to_string(groups.size()) + " groups");
      for (size_t g = 0; g < groups.size(); ++g)
        read_group(source, state, g, groups[g], dp, mp, !round_robin);
    }
  }
  if (round_robin) check_weights(source);
  if (source.states_refused.empty())
    source.optimizer_state =
        universal_optimizer_state(optimizers[0].at(keys::kOptimizerStateDict), source.dp_size);
}

}  // namespace anymesh
