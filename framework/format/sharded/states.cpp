// The states that any optimizer has beside the masters.

#include <algorithm>
#include <cctype>

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Whether a state's name can be a file name in a universal folder.
bool is_plain(const std::string& name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && name.size() < 100 && name != kFp32State &&
         std::all_of(name.begin(), name.end(), plain);
}

bool is_single(const Value& step) {
  return step.is_int() || step.kind() == Value::Kind::kFloat ||
         (step.is_tensor() && step.as_tensor().shape.empty());
}

}  // namespace

void check_covered(const std::string& name, const ParameterShard& shard, const std::string& state) {
  const auto fail = [&](const std::string& found) {
    throw DamagedFile(name + ": " + state + " of tp rank " + std::to_string(shard.tp_rank) +
                      " has " + found);
  };
  int64_t next = 0;
  const auto held = shard.states.find(state);
  if (held == shard.states.end())
    fail("0 elements, expected " + std::to_string(numel(shard.shape)));
  for (const ShardFragment& fragment : held->second.fragments) {
    if (fragment.begin != next) {
      fail("elements up to " + std::to_string(next) + ", then from " +
           std::to_string(fragment.begin) + " (dp rank " + std::to_string(fragment.dp_rank) + ")");
    }
    next += fragment.numel;
  }
  if (next != numel(shard.shape)) {
    fail(std::to_string(next) + " elements, expected " + std::to_string(numel(shard.shape)));
  }
}

TensorRecord shard_tensor(const ParameterShard& shard, std::string_view state) {
  const ShardState& found = shard.states.find(state)->second;
  return {found.dtype, shard.shape, false, joined(shard.shape, found.fragments, found.dtype)};
}

void require_states(const std::filesystem::path& folder, const std::string& states_refused,
                    const std::string& remedy) {
  if (states_refused.empty()) return;
  throw Unreadable(folder.string() + ": the weights can be read, but not the optimizer's states: " +
                   states_refused + "\n" + remedy);
}

OptimizerStates states_of(ShardedCheckpoint& source, const Value& entry, const Value& group,
                          std::vector<int64_t> counts) {
  if (!entry) return {};
  OptimizerStates states;
  const auto refuse = [&](const Value& state, const std::string& expected) {
    if (!source.states_refused.empty()) return;
    source.states_refused = state.where() + ": expected " + expected + ", found " + state.found();
  };
  if (!entry.is_dict()) {
    refuse(entry, "a dict of states");
    return {};
  }
  for (const auto& [key, state] : entry.entries()) {
    const std::string name = key.is_string() ? key.as_string() : key.found();
    if (!state || name == kStepState) continue;
    const bool adams = name == kExpAvgState || name == kExpAvgSqState;
    const bool fits =
        state.is_tensor() && std::ranges::count(counts, state.as_tensor().numel()) > 0;
    if (adams && !fits)
      state.fail("a tensor of " + std::to_string(counts.at(0)) + " elements, as of the weights");
    if (!is_plain(name) || !fits || !is_floating(state.as_tensor().dtype)) {
      refuse(state, "a floating-point number for each of " + std::to_string(counts.at(0)) +
                        " elements (the state of another optimizer?)");
    } else {
      states.tensors.emplace_back(name, state);
    }
  }
  states.step = step_of(entry, group);
  if (states.step && !is_single(states.step)) {
    refuse(states.step, "a number");
    states.step = {};
  }
  return states;
}

void add_fragment(ParameterShard& shard, std::string_view state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel) {
  const TensorRecord& tensor = flat.as_tensor();
  if (start < 0 || numel > tensor.numel() - start) {
    flat.fail("at least " + std::to_string(start) + " + " + std::to_string(numel) + " elements");
  }
  const auto [found, is_new] =
      shard.states.try_emplace(std::string(state), ShardState{tensor.dtype});
  auto& [dtype, fragments] = found->second;
  if (dtype != tensor.dtype) flat.fail(std::string(dtype_name(dtype)) + ", as on other ranks");
  if (numel == 0) return;
  const uint64_t size = element_size(tensor.dtype);
  fragments.push_back({dp_rank, begin, numel,
                       std::make_shared<SubRange>(tensor.bytes, static_cast<uint64_t>(start) * size,
                                                  static_cast<uint64_t>(numel) * size)});
}

void add_fragments(ParameterShard& shard, int dp_rank, const Value& fp32,
                   const OptimizerStates& states, int64_t start, int64_t begin, int64_t numel) {
  add_fragment(shard, kFp32State, dp_rank, fp32, start, begin, numel);
  for (const auto& [name, flat] : states.tensors)
    add_fragment(shard, name, dp_rank, flat, start, begin, numel);
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

void set_step(ParameterShard& shard, const std::string& name, const Value& step) {
  if (shard.step && step && shard.step.as_double() != step.as_double()) {
    step.fail("step " + shard.step.found() + " for " + name + ", as on other ranks");
  }
  if (!shard.step) shard.step = step;
}

Value entry_of(const Value& states, size_t index) {
  return states.find(static_cast<int64_t>(index));
}

Value step_of(const Value& state, const Value& group) {
  const Value step = state.find(kStepState);
  return step ? step : group.find(kStepState);
}

}  // namespace anymesh
