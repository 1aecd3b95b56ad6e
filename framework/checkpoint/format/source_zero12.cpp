// ZeRO 1, 2 and BF16_Optimizer: parameters one after the other in the flat buffer of their group,
// cut among dp ranks.

#include "framework/checkpoint/format/partition.h"
#include "framework/checkpoint/format/source_stages.h"

namespace anymesh {
namespace {

using GroupShapes = std::vector<NamedShape>;

// What the file says must be what the arithmetic gives. With round_robin_gradients DeepSpeed
// records an order that is not the one on disk, and a converter that believed it would scramble the
// parameters.
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
    throw ValueError(address.where() + ": says " + std::to_string(count) + " elements at " +
                     std::to_string(start) + ", but the parameters before it put " +
                     std::to_string(fragment.numel) + " at " +
                     std::to_string(fragment.partition_start));
  }
}

void refuse_unknown_layout(const Value& optimizer) {
  const Value round_robin = round_robin_gradients(optimizer);
  if (round_robin.as_bool()) {
    round_robin.fail(
        "false (DeepSpeed records the parameters of such a checkpoint in the wrong order)");
  }
}

// Zeros after each parameter of group `g`, or nothing where there are none.
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
    throw ValueError(state.where() + ": " + error.what());
  }
}

// The optimizer's state of one group. Elastic checkpoints ("elastic_checkpoint": true) have a list
// of them, with tensors without padding and without param_groups.
struct GroupState {
  Value adam, step;  // None before the first step
};

GroupState group_state(const Value& state, size_t g) {
  const Value base = state.at(keys::kBaseOptimizerState);
  if (base.is_list()) {
    const Value adam = base.at(g);
    if (!adam.contains(kExpAvgState)) return {};
    return {adam, adam.find(kStepState).value_or(state.find(keys::kBaseOptimizerStateStep))};
  }
  const Value adam = entry_of(base.at(keys::kState), g);
  return {adam, adam ? step_of(adam, base.at(keys::kParamGroups).at(g)) : Value()};
}

// One group of one rank: all its fragments, of all states.
void read_group(SourceCheckpoint& source, const Value& state, size_t g, const GroupShapes& group,
                int dp, int mp) {
  const FlatGroup layout = layout_of(state, g, group, source.dp_size);
  const std::vector<Fragment> fragments = layout.fragments(dp);
  if (const Value mappings = state.find(keys::kParamSliceMappings))  // older versions have none
    check_mapping(mappings.at(g), group, fragments);
  const auto [adam, step] = group_state(state, g);
  const Value fp32 = state.at(keys::kFp32Groups).at(g);
  if (adam) {
    const Value exp_avg = adam.at(kExpAvgState);
    const int64_t count = exp_avg.as_tensor().numel(), padded = layout.partition_numel();
    if (count != padded && count != padded - layout.padding(dp)) {
      exp_avg.fail("a partition of " + std::to_string(layout.partition_numel()) + " elements (" +
                   std::to_string(layout.numel()) + " among dp " + std::to_string(source.dp_size) +
                   ")");
    }
  }
  for (const Fragment& fragment : fragments) {
    const auto& [name, shape] = group[fragment.param];
    SourceShard& shard = shard_of(source, name, mp, shape);
    add_fragments(shard, dp, fp32, adam, fragment.partition_start, fragment.param_start,
                  fragment.numel);
    if (adam) set_step(shard, name, step);
  }
}

// As ds_to_universal leaves it: without what lies in the parameters' own files, paddings zeroed.
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

void read_zero12(SourceCheckpoint& source, const std::vector<Value>& optimizers) {
  const int mp_size = source.tp_size * source.pp_size;
  for (int mp = 0; mp < mp_size; ++mp) {
    const Value shapes = source.model_states[static_cast<size_t>(mp)].at(keys::kParamShapes);
    if (!shapes)
      shapes.fail("a list of shapes (a ZeRO 0 checkpoint of BF16_Optimizer cannot be read)");
    std::vector<GroupShapes> groups;
    for (const Value& dict : shapes.items()) groups.push_back(named_shapes(dict));
    for (int dp = 0; dp < source.dp_size; ++dp) {
      const Value& file = optimizers[static_cast<size_t>(dp * mp_size + mp)];
      refuse_unknown_layout(file);
      const Value state = file.at(keys::kOptimizerStateDict);
      const Value fp32 = state.at(keys::kFp32Groups);
      if (fp32.size() != groups.size())
        fp32.fail("partitions of " + std::to_string(groups.size()) + " groups");
      for (size_t g = 0; g < groups.size(); ++g) {
        read_group(source, state, g, groups[g], dp, mp);
      }
    }
  }
  source.optimizer_state =
      universal_optimizer_state(optimizers[0].at(keys::kOptimizerStateDict), source.dp_size);
}

}  // namespace anymesh
