// ZeRO 3: each parameter is partitioned among dp ranks by itself. Sub-groups hold the parts of
// consecutive parameters.

#include <algorithm>

#include "framework/format/layout/partition.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"

namespace anymesh {
namespace {

// Returns the parameter group that a sub-group belongs to.
Value group_of(const Value& torch_state, int64_t sub_group) {
  for (const Value& group : torch_state.at(keys::kParamGroups).items()) {
    const std::vector<int64_t> members = group.at(keys::kParams).as_ints();
    if (std::find(members.begin(), members.end(), sub_group) != members.end()) return group;
  }
  return Value::dict();
}

// Returns the names of each group's parameters, sub-group after sub-group.
std::vector<std::vector<std::string>> group_names(const Value& torch_state, const Value& shapes) {
  std::vector<std::vector<std::string>> groups;
  for (const Value& group : torch_state.at(keys::kParamGroups).items()) {
    auto& names = groups.emplace_back();
    for (const int64_t sub_group : group.at(keys::kParams).as_ints()) {
      if (sub_group < 0) group.fail("sub-groups from 0 on");
      const auto own = names_of(named_shapes(shapes.at(static_cast<size_t>(sub_group))));
      names.insert(names.end(), own.begin(), own.end());
    }
  }
  return groups;
}

// A dp rank's part of a sub-group.
struct SubGroup {
  Value fp32;
  OptimizerStates states;
  GroupPart part;
  int64_t start = 0;  // of the next parameter's elements
};

SubGroup sub_group_of(ShardedCheckpoint& source, const Value& state, size_t g, bool experts, int dp,
                      int mp) {
  const Value torch_state = state.at(keys::kOptimizerStateDict),
              fp32 = state.at(keys::kFp32FlatGroups).at(g);
  const Value group = group_of(torch_state, static_cast<int64_t>(g));
  OptimizerStates states = states_of(source, entry_of(torch_state.at(keys::kState), g), group,
                                     {fp32.as_tensor().numel()});
  return {fp32, std::move(states), GroupPart(source, experts, dp, mp, group)};
}

// Reads one sub-group of all dp ranks, parameter by parameter.
void read_sub_group(ShardedCheckpoint& source, const std::vector<Value>& ranks, size_t g,
                    const std::vector<NamedShape>& parameters, int mp) {
  const bool experts = has_experts(source, parameters);
  std::vector<SubGroup> parts;
  for (const Value& state : ranks)
    parts.push_back(sub_group_of(source, state, g, experts, static_cast<int>(parts.size()), mp));
  for (const NamedShape& parameter : parameters) {
    const int64_t count = numel(parameter.shape);
    ParameterShard* shard = nullptr;  // all dense parts are of one
    for (size_t dp = 0; dp < parts.size(); ++dp) {
      auto& [fp32, states, part, start] = parts[dp];
      const auto [name, shape, first] = part.place(source, parameter);
      if (!shard || experts) shard = &shard_of(source, name, part.mp_rank, shape);
      const auto [begin, held] = zero3_part(count, part.rank, part.ranks);
      add_fragments(*shard, static_cast<int>(dp), fp32, states, start, first + begin, held);
      set_numbers(source, *shard, name, states);
      start += zero3_part_numel(count, part.ranks);
    }
  }
  for (const SubGroup& part : parts)
    if (part.fp32.as_tensor().numel() != part.start)
      part.fp32.fail("a sub-group of " + std::to_string(part.start) + " elements");
}

}  // namespace

void read_frozen_of_zero3(ShardedCheckpoint& source) {
  for (int mp = 0; mp < source.tp_size * source.pp_size; ++mp) {
    const Value shapes =
        source.model_states[static_cast<size_t>(mp)].find(keys::kFrozenParamShapes);
    if (!shapes || shapes.size() == 0) continue;
    for (int dp = 0; dp < source.dp_size; ++dp) {
      const auto file = static_cast<size_t>(dp * source.tp_size * source.pp_size + mp);
      const Value& parts = source.frozen_parts.at(file);
      for (const NamedShape& parameter : named_shapes(shapes)) {
        const GroupPart rank(source, source.experts.is_expert(parameter.name), dp, mp,
                             Value::dict());
        const auto [name, shape, first] = rank.place(source, parameter);
        const auto [begin, held] = zero3_part(numel(parameter.shape), rank.rank, rank.ranks);
        ParameterShard& shard = shard_of(source, name, rank.mp_rank, shape);
        const Value part = parts.at(parameter.name),
                    whole = Value(widened(part.as_tensor())).named(part.where());
        add_fragment(shard, kFp32State, dp, whole, 0, first + begin, held);
      }
    }
  }
}

void read_zero3(ShardedCheckpoint& source, const std::vector<Value>& optimizers) {
  const int mp_size = source.tp_size * source.pp_size;
  for (int mp = 0; mp < mp_size; ++mp) {
    const Value shapes = source.model_states[static_cast<size_t>(mp)].at(keys::kParamShapes);
    const Value& first = source.optimizers.emplace_back(
        optimizers[static_cast<size_t>(mp)].at(keys::kOptimizerStateDict));
    source.groups.push_back(group_names(first.at(keys::kOptimizerStateDict), shapes));
    std::vector<Value> ranks;
    for (int dp = 0; dp < source.dp_size; ++dp) {
      ranks.push_back(
          optimizers[static_cast<size_t>(dp * mp_size + mp)].at(keys::kOptimizerStateDict));
      const Value flat = ranks.back().at(keys::kFp32FlatGroups);
      if (flat.size() != shapes.size()) flat.fail(std::to_string(shapes.size()) + " sub-groups");
    }
    for (size_t g = 0; g < shapes.size(); ++g)
      read_sub_group(source, ranks, g, named_shapes(shapes.at(g)), mp);
  }
  read_frozen_of_zero3(source);
  if (!source.states_refused.empty()) return;
  const Value& state = source.optimizers[rank_with_all_groups(source)];
  source.optimizer_state =
      universal_state(state, state.at(keys::kOptimizerStateDict), source.dp_size);
}

}  // namespace anymesh
