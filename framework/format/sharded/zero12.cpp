// ZeRO 1, 2 and BF16_Optimizer: each group's flat buffer holds its parameters one after the other
// and is partitioned among dp ranks.

#include <algorithm>
#include <set>

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

// Returns the base optimizer's state of one group, and its param group. The tensors of elastic
// checkpoints are not padded.
std::pair<Value, Value> group_state(const Value& state, size_t g) {
  const Value base = base_state_of(state), none = Value::dict();
  const Value states = base.is_dict() ? base.find(keys::kState) : Value();
  if (!states.is_dict()) return {Value("no state of an optimizer").named(state.where()), none};
  const Value groups = base.find(keys::kParamGroups);
  return {entry_of(states, g), groups.is_list() ? groups.at(g) : none};
}

bool is_offloaded(const Value& file) {
  const Value offload =
      config_entry(file.find(keys::kDsConfig), keys::kZeroOptimization, keys::kOffloadOptimizer);
  return offload.is_dict() && offload.find(keys::kDevice) != Value("none");
}

// One group of one rank.
struct RankGroup {
  const Value& file;
  size_t g;
  const GroupShapes& group;
  int dp, mp;
  GroupPart part;
};

// DeepSpeedZeroOptimizer with Muon keeps the whole momentum of each matrix that has elements in the
// partition, one matrix after the other. With offloading, and in BF16_Optimizer, it keeps the
// partition's momentum; so do we, whose groups have kOptimizerName. Takes the momentum of whole
// matrices out of a group's state; None if there is none.
Value take_whole_momentum(Value& entry, const Value& param_group, const RankGroup& rank,
                          const std::vector<Fragment>& fragments,
                          const std::vector<int64_t>& counts) {
  if (!entry.is_dict() || !param_group.find(keys::kUseMuon).value_or(false).as_bool() ||
      param_group.contains(keys::kOptimizerName))
    return {};
  const Value momentum = entry.find(kMomentumState);
  if (!momentum.is_tensor() || !is_floating(momentum.as_tensor().dtype)) return {};
  int64_t whole = 0;
  for (const Fragment& fragment : fragments) whole += numel(rank.group[fragment.param].shape);
  if (momentum.as_tensor().numel() != whole) return {};
  const bool sizes_tell = std::ranges::count(counts, whole) == 0,
             has_stage = !rank.file.at(keys::kOptimizerStateDict).find(keys::kZeroStage).is_none();
  if (!sizes_tell && (!has_stage || is_offloaded(rank.file))) return {};
  entry.erase(kMomentumState);
  return momentum;
}

// Reads all fragments of all states.
void read_group(ShardedCheckpoint& source, const RankGroup& rank, bool check_mappings) {
  const auto& [file, g, group, dp, mp, part] = rank;
  const Value state = file.at(keys::kOptimizerStateDict);
  const FlatGroup layout = layout_of(state, g, group, part.ranks);
  const std::vector<Fragment> fragments = layout.fragments(part.rank);
  const Value mappings = state.find(keys::kParamSliceMappings);  // older versions have none
  if (mappings && check_mappings) check_mapping(mappings.at(g), group, fragments);
  const Value fp32 = state.at(keys::kFp32Groups).at(g);
  const int64_t padded = layout.partition_numel();
  const std::vector<int64_t> counts = {padded, padded - layout.padding(part.rank)};
  auto [entry, param_group] = group_state(state, g);
  const Value momentum = take_whole_momentum(entry, param_group, rank, fragments, counts);
  int64_t matrix = 0;  // the place of the fragment's parameter in `momentum`
  const OptimizerStates states = states_of(source, entry, param_group, counts);
  for (const Fragment& fragment : fragments) {
    const auto& [name, shape, begin] = part.place(source, group[fragment.param]);
    ParameterShard& shard = shard_of(source, name, part.mp_rank, shape);
    add_fragments(shard, dp, fp32, states, fragment.partition_start, begin + fragment.param_start,
                  fragment.numel);
    if (momentum)
      add_fragment(shard, kMomentumState, dp, momentum, matrix + fragment.param_start,
                   begin + fragment.param_start, fragment.numel);
    matrix += numel(group[fragment.param].shape);
    set_numbers(source, shard, name, states);
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

// Returns the names in the partitions of one group, in the order of its flat buffer.
Value mapped_names(const std::vector<Value>& mappings, size_t g) {
  std::vector<Value::Entry> names;
  std::set<std::string> known;
  for (const Value& rank : mappings) {
    for (const auto& [name, address] : rank.at(g).entries())
      if (known.insert(name.as_string()).second) names.emplace_back(name, Value());
  }
  return Value::ordered_dict(std::move(names));
}

// Returns the groups of a model-parallel rank. Where param_shapes has only names, their shapes are
// those of the model's weights, which it then has too.
std::vector<GroupShapes> groups_of(ShardedCheckpoint& source, int mp) {
  Value& state = source.model_states[static_cast<size_t>(mp)];
  const Value shapes = state.find(keys::kParamShapes);
  if (!shapes) {
    const std::string missing = ": has no " + std::string(keys::kParamShapes) +
                                ", so that nothing says which partition has which parameters";
    if (state.contains(keys::kParamShapes)) throw Unproven(state.where() + missing);
    throw Unproven(state.where() + missing + ". It is of DeepSpeed " +
                   state.find(keys::kDsVersion).found() +
                   "; load it in DeepSpeed 0.5.5 or later, and save it again");
  }
  const NamedTensors& tensors = source.model_tensors[static_cast<size_t>(mp % source.tp_size)];
  const Weights weights(tensors.begin(), tensors.end());
  std::vector<GroupShapes> groups;
  Value filled = Value::list();
  for (Value dict : shapes.items()) {
    for (const auto& [name, shape] : dict.entries()) {
      if (shape) continue;
      const auto weight = weights.find(name.as_string());
      if (weight == weights.end())
        throw DamagedFile(source.folder.string() + ": no file has the weights of " +
                          name.as_string() + ", which its " +
                          std::string(keys::kParamSliceMappings) + " name");
      dict.set(name.as_string(), Value::size(weight->second.shape));
    }
    groups.push_back(named_shapes(dict));
    filled.push_back(dict);
  }
  state.set(keys::kParamShapes, filled);
  return groups;
}

void read_all_groups(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  const int mp_size = source.tp_size * source.pp_size;
  const bool round_robin = round_robin_gradients(optimizers[0]).as_bool();
  for (int mp = 0; mp < mp_size; ++mp) {
    const std::vector<GroupShapes> groups = groups_of(source, mp);
    auto& names = source.groups.emplace_back();
    for (const GroupShapes& group : groups) names.push_back(names_of(group));
    source.optimizers.push_back(optimizers[static_cast<size_t>(mp)].at(keys::kOptimizerStateDict));
    for (int dp = 0; dp < source.dp_size; ++dp) {
      const Value& file = optimizers[static_cast<size_t>(dp * mp_size + mp)];
      const Value fp32 = file.at(keys::kOptimizerStateDict).at(keys::kFp32Groups);
      if (fp32.size() != groups.size())
        fp32.fail("partitions of " + std::to_string(groups.size()) + " groups");
      for (size_t g = 0; g < groups.size(); ++g) {
        const Value group = group_state(file.at(keys::kOptimizerStateDict), g).second;
        const GroupPart part(source, has_experts(source, groups[g]), dp, mp, group);
        read_group(source, {file, g, groups[g], dp, mp, part}, !round_robin || source.stage == 0);
      }
    }
  }
  if (round_robin) check_weights(source);
  if (!source.states_refused.empty()) return;
  const Value& state = source.optimizers[rank_with_all_groups(source)];
  source.optimizer_state = universal_state(state, base_state_of(state), source.dp_size);
}

}  // namespace

bool name_mapped_parameters(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  bool named = false;
  const size_t mp_size = source.model_states.size();
  for (size_t mp = 0; mp < mp_size; ++mp) {
    if (source.model_states[mp].find(keys::kParamShapes)) continue;
    std::vector<Value> mappings;  // by dp rank
    for (size_t at = mp; at < optimizers.size(); at += mp_size) {
      const Value state = optimizers[at].at(keys::kOptimizerStateDict);
      mappings.push_back(state.find(keys::kParamSliceMappings));
      if (!mappings.back()) return named;
    }
    Value groups = Value::list();
    for (size_t g = 0; g < mappings[0].size(); ++g) groups.push_back(mapped_names(mappings, g));
    source.model_states[mp].set(keys::kParamShapes, groups);
    named = true;
  }
  return named;
}

// At first all groups' shapes were in one dict, which the masters' sizes cut.
void take_older_shapes(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  const size_t mp_size = source.model_states.size();
  const bool zero3 = source.stage == 3;
  for (size_t mp = 0; mp < mp_size; ++mp) {
    const Value all = optimizers[mp].find(keys::kParamShapes);
    if (!all || source.model_states[mp].find(keys::kParamShapes)) continue;
    std::vector<Value> groups = all.is_list() ? all.items() : std::vector<Value>();
    int64_t left = 0;  // elements of the last group that have no name yet
    for (const auto& [name, shape] : all.is_list() ? GroupShapes() : named_shapes(all)) {
      const int64_t count =
          zero3 ? zero3_part_numel(numel(shape), source.dp_size) * source.dp_size : numel(shape);
      while (groups.empty() || left < count) {
        left = 0;
        for (size_t at = mp; at < optimizers.size(); at += mp_size)
          left += optimizers[at]
                      .at(keys::kOptimizerStateDict)
                      .at(zero3 ? keys::kFp32FlatGroups : keys::kFp32Groups)
                      .at(groups.size())
                      .as_tensor()
                      .numel();
        groups.push_back(Value::ordered_dict());
      }
      groups.back().set(name, Value::size(shape));
      left -= count;
    }
    source.model_states[mp].set(keys::kParamShapes, Value::list(std::move(groups)));
  }
}

void read_zero12(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  try {
    read_all_groups(source, optimizers);
  } catch (const Unproven& error) {
    source.parameters.clear();
    source.states_refused = error.what();
    read_weights(source);
  }
}

}  // namespace anymesh
