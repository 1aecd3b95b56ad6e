// The states that any optimizer has beside the masters.

#include <algorithm>
#include <cctype>
#include <map>

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Whether a state beside the step is one number for all elements. The shape of a parameter without
// dims does not tell, and the name must.
bool is_number(const std::string& name, const Value& state, const Shape* shape) {
  constexpr std::string_view kNames[] = {"mu_product", "eta", "mu", kRecomputedNumber};
  return is_single(state) && (!shape || !shape->empty() || std::ranges::count(kNames, name) > 0);
}

class StatesReader {
 public:
  StatesReader(ShardedCheckpoint& source, std::vector<int64_t> counts, const Shape* shape)
      : source_(source), counts_(std::move(counts)), shape_(shape) {}

  OptimizerStates read(const Value& entry, const Value& group) {
    if (!entry) return {};
    if (!entry.is_dict()) {
      refuse(entry, "a dict of states");
      return {};
    }
    for (const auto& [key, state] : entry.entries())
      if (state && key != Value(kStepState))
        add(key.is_string() ? key.as_string() : key.found(), state);
    states_.step = step_of(entry, group);
    if (states_.step && !is_single(states_.step)) {
      refuse(states_.step, "a number");
      states_.step = {};
    }
    return std::move(states_);
  }

 private:
  void add(const std::string& name, const Value& state) {
    const bool adams = name == kExpAvgState || name == kExpAvgSqState;
    if (!adams && is_number(name, state, shape_))
      return void(states_.numbers.emplace_back(name, state));
    const bool fits = state.is_tensor() && is_whole(state.as_tensor());
    if (adams && !fits)
      state.fail("a tensor of " + std::to_string(counts_.at(0)) + " elements, as of the weights");
    const bool factored =
        shape_ && state.is_tensor() && is_factored(state.as_tensor().shape, *shape_);
    if (!is_state_name(name) || !(fits || factored) || !is_floating(state.as_tensor().dtype)) {
      refuse(state, "a floating-point number for each of " + std::to_string(counts_.at(0)) +
                        " elements (the state of another optimizer?)");
    } else {
      (fits ? states_.tensors : states_.factored).emplace_back(name, state);
    }
  }

  bool is_whole(const TensorRecord& state) const {
    return shape_ ? state.shape == *shape_ : std::ranges::count(counts_, state.numel()) > 0;
  }

  void refuse(const Value& state, const std::string& expected) {
    if (!source_.states_refused.empty()) return;
    source_.states_refused = state.where() + ": expected " + expected + ", found " + state.found();
  }

  ShardedCheckpoint& source_;
  std::vector<int64_t> counts_;  // that a state may have
  const Shape* shape_;           // of the one parameter; null for a flat tensor
  OptimizerStates states_;
};

}  // namespace

bool is_state_name(const std::string& name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && name.size() < 100 && name != kFp32State && name != kStepState &&
         std::all_of(name.begin(), name.end(), plain);
}

bool is_single(const Value& value) {
  return value.is_int() || value.kind() == Value::Kind::kFloat ||
         (value.is_tensor() && value.as_tensor().shape.empty());
}

void check_covered(const std::string& name, const ParameterShard& shard, const std::string& state) {
  const auto fail = [&](const std::string& found) {
    throw DamagedFile(name + ": " + state + " of tp rank " + std::to_string(shard.tp_rank) +
                      " has " + found);
  };
  int64_t next = 0;
  const auto held = shard.states.find(state);
  if (held == shard.states.end())
    fail("0 elements, expected " + std::to_string(numel(shard.shape)));
  const int64_t expected = numel(shard.shape_of(held->second));
  for (const ShardFragment& fragment : held->second.fragments) {
    if (fragment.begin != next) {
      fail("elements up to " + std::to_string(next) + ", then from " +
           std::to_string(fragment.begin) + " (dp rank " + std::to_string(fragment.dp_rank) + ")");
    }
    next += fragment.numel;
  }
  if (next != expected)
    fail(std::to_string(next) + " elements, expected " + std::to_string(expected));
}

bool is_factored(const Shape& state, const Shape& parameter) {
  if (parameter.size() < 2) return false;
  for (size_t dim = 0; dim < parameter.size(); ++dim) {
    Shape factor = parameter;
    factor[dim] = 1;
    if (state == factor) return true;
    factor.erase(factor.begin() + static_cast<std::ptrdiff_t>(dim));
    if (state == factor) return true;
  }
  return false;
}

TensorRecord shard_tensor(const ParameterShard& shard, std::string_view state) {
  const ShardState& found = shard.states.find(state)->second;
  const Shape& shape = shard.shape_of(found);
  return {found.dtype, shape, false, joined(shape, found.fragments, found.dtype)};
}

void require_states(const std::filesystem::path& folder, const std::string& states_refused,
                    const std::string& remedy) {
  if (states_refused.empty()) return;
  throw Unreadable(folder.string() + ": the weights can be read, but not the optimizer's states: " +
                   states_refused + "\n" + remedy);
}

OptimizerStates states_of(ShardedCheckpoint& source, const Value& entry, const Value& group,
                          const std::vector<int64_t>& counts, const Shape* shape) {
  return StatesReader(source, counts, shape).read(entry, group);
}

void add_fragment(ParameterShard& shard, std::string_view state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel) {
  const TensorRecord& tensor = flat.as_tensor();
  if (start < 0 || numel > tensor.numel() - start) {
    flat.fail("at least " + std::to_string(start) + " + " + std::to_string(numel) + " elements");
  }
  const auto [found, is_new] =
      shard.states.try_emplace(std::string(state), ShardState{tensor.dtype});
  ShardState& held = found->second;
  if (held.dtype != tensor.dtype)
    flat.fail(std::string(dtype_name(held.dtype)) + ", as on other ranks");
  if (numel == 0) return;
  held.fragments.push_back({dp_rank, begin, numel, tensor.bytes,
                            static_cast<uint64_t>(start) * element_size(tensor.dtype)});
}

void add_fragments(ParameterShard& shard, int dp_rank, const Value& fp32,
                   const OptimizerStates& states, int64_t start, int64_t begin, int64_t numel) {
  add_fragment(shard, kFp32State, dp_rank, fp32, start, begin, numel);
  for (const auto& [name, flat] : states.tensors)
    add_fragment(shard, name, dp_rank, flat, start, begin, numel);
  for (const auto& [name, state] : states.factored) {
    const TensorRecord& tensor = state.as_tensor();
    add_fragment(shard, name, dp_rank, state, 0, 0, tensor.numel());
    shard.states.find(name)->second.factored = tensor.shape;
  }
}

bool has_experts(const ShardedCheckpoint& source, const std::vector<NamedShape>& group) {
  const bool experts = !group.empty() && source.experts.is_expert(group[0].name);
  for (const NamedShape& parameter : group)
    if (source.experts.is_expert(parameter.name) != experts)
      throw DamagedFile(source.folder.string() + ": " + parameter.name + " and " + group[0].name +
                        " are in one group, though only one of them is an expert's");
  return experts;
}

GroupPart::GroupPart(const ShardedCheckpoint& source, bool has_experts, int dp_rank, int mp,
                     const Value& param_group)
    : rank(dp_rank), ranks(source.dp_size), experts(has_experts), mp_rank(mp) {
  if (!experts) return;
  const Value name = param_group.find(keys::kGroupName);
  spread = source.experts.rank_of(dp_rank, source.dp_size, mp % source.tp_size, source.tp_size,
                                  name.is_string() ? name.as_string() : "");
  rank = spread.edp;
  ranks = spread.edp_size;
  if (source.experts.whole) mp_rank = mp / source.tp_size * source.tp_size;
}

size_t rank_with_all_groups(const ShardedCheckpoint& source) {
  const auto most =
      std::ranges::max_element(source.groups, {}, [](const auto& groups) { return groups.size(); });
  return static_cast<size_t>(most - source.groups.begin());
}

ParameterShard& shard_of(ShardedCheckpoint& source, const std::string& name, int mp_rank,
                         const Shape& shape) {
  const int pp_rank = mp_rank / source.tp_size, tp_rank = mp_rank % source.tp_size;
  auto& shards = source.parameters[name];
  for (ParameterShard& shard : shards) {
    if (shard.pp_rank == pp_rank && shard.tp_rank == tp_rank) return shard;
  }
  return shards.emplace_back(
      ParameterShard{.pp_rank = pp_rank, .tp_rank = tp_rank, .shape = shape});
}

void set_numbers(ShardedCheckpoint& source, ParameterShard& shard, const std::string& name,
                 const OptimizerStates& states) {
  const Value& step = states.step;
  if (shard.step && step && shard.step.as_double() != step.as_double()) {
    step.fail("step " + shard.step.found() + " for " + name + ", as on other ranks");
  }
  if (!shard.step) shard.step = step;
  for (const auto& [key, number] : states.numbers) {
    const Value& known = shard.numbers.try_emplace(key, number).first->second;
    if (key == kRecomputedNumber || known.as_double() == number.as_double() ||
        !source.states_refused.empty())
      continue;
    source.states_refused = number.where() + ": expected " + std::to_string(known.as_double()) +
                            " for " + name + ", as in " + known.where() + ", found " +
                            std::to_string(number.as_double());
  }
}

Value universal_state(Value state, const Value& torch, int dp_size) {
  const Value groups = torch.at(keys::kParamGroups);
  const bool zero3 = !state.find(keys::kOptimizerStateDict).is_none();
  for (const auto key : {keys::kBaseOptimizerState, keys::kParamSliceMappings, keys::kFp32Groups,
                         keys::kFp32FlatGroups})
    state.erase(key);
  state.set(keys::kParamGroups, groups);
  const std::vector<int64_t> zeros(groups.size(), 0), counts(groups.size(), dp_size);
  if (state.find(keys::kGroupPaddings)) state.set(keys::kGroupPaddings, Value::list_of(zeros));
  if (!zero3) state.set(keys::kPartitionCount, Value::list_of(counts));
  std::vector<Value::Entry> numbers;
  bool more = zero3;  // than the step
  for (const auto& [group, entry] : torch.at(keys::kState).entries()) {
    Value& own = numbers.emplace_back(group, Value::dict()).second;
    if (!entry.is_dict()) continue;
    for (const auto& [key, value] : entry.entries()) {
      if (!key.is_string() || !is_number(key.as_string(), value, nullptr)) continue;
      own.set(key.as_string(), value);
      more |= key != Value(kStepState);
    }
  }
  if (!more) return state;
  Value own = state.find(keys::kOptimizerStateDict);
  if (!own) own = Value::dict({{keys::kParamGroups, groups}});
  return state.set(keys::kOptimizerStateDict,
                   own.set(keys::kState, Value::dict(std::move(numbers))));
}

void note_numbers(const ShardedCheckpoint& source, bool universal,
                  std::vector<std::string>& notes) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, shards] : source.parameters)
    for (const auto& [key, number] : shards.front().numbers)
      if (key == kRecomputedNumber)
        texts[key] = ": the first rank's stands for all, as each step computes it anew";
      else if (universal)
        texts[key] = ": ds_reshard keeps it, but DeepSpeed's load of a universal folder does not";
  for (const auto& [key, text] : texts) notes.push_back(key + text);
}

Value base_state_of(const Value& optimizer) {
  const Value base = optimizer.find(keys::kBaseOptimizerState),
              step = optimizer.find(keys::kBaseOptimizerStateStep);
  if (!base.is_list()) return base;
  std::vector<Value::Entry> states;
  Value groups = Value::list();
  for (const Value& state : base.items()) {
    const auto g = static_cast<int64_t>(states.size());
    Value group = Value::dict({{keys::kParams, Value::list({g})}});
    if (step) group.set(kStepState, step);
    groups.push_back(group);
    states.emplace_back(g, state);
  }
  return Value::dict(
      {{keys::kState, Value::dict(std::move(states))}, {keys::kParamGroups, groups}});
}

Value entry_of(const Value& states, size_t index) {
  return states.find(static_cast<int64_t>(index));
}

Value step_of(const Value& state, const Value& group) {
  const Value step = state.find(kStepState);
  return step ? step : group.find(kStepState);
}

}  // namespace anymesh
