#include "framework/format/sharded/consistency.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

constexpr int64_t kCompared = 256 << 10;  // elements compared at a time

// Collects the steps in a file's optimizer state, at any depth of wrappers.
void collect_steps(const Value& value, std::vector<Value>& steps) {
  for (const auto key : {keys::kOptimizerStateDict, keys::kOptimizer, keys::kBaseOptimizerState})
    if (const Value inner = value.find(key); inner.is_dict()) collect_steps(inner, steps);
  const Value states = value.find(keys::kState), groups = value.find(keys::kParamGroups);
  if (!states.is_dict() || !groups.is_list() || groups.size() == 0) return;
  for (const auto& [index, state] : states.entries())
    if (const Value step = step_of(state, groups.at(0)); is_single(step)) steps.push_back(step);
}

// Returns the highest step, or None.
Value highest_step(const Value& contents) {
  std::vector<Value> steps;
  collect_steps(contents, steps);
  Value highest;
  for (const Value& step : steps)
    if (!highest || step.as_double() > highest.as_double()) highest = step;
  return highest;
}

// Returns the shapes in a dict, or in the dicts of a list, by name.
std::map<std::string, std::string> shapes_in(const Value& value) {
  std::map<std::string, std::string> shapes;
  for (const Value& dict : value.is_list() ? value.items() : std::vector{value})
    if (dict.is_dict())
      for (const auto& [name, shape] : dict.entries())
        shapes[name.as_string()] = shape ? to_string(shape.as_shape()) : shape.found();
  return shapes;
}

// The largest of the fragments that a rank's file holds.
struct Largest {
  const std::string* name = nullptr;
  const ParameterShard* shard = nullptr;
  const ShardFragment* fragment = nullptr;
  DType dtype = DType::kFloat32;
};
using FragmentsByRank = std::map<std::pair<int, int>, Largest>;  // by mp and dp rank

FragmentsByRank largest_fragments(const ShardedCheckpoint& source) {
  FragmentsByRank ranks;
  for (const auto& [name, shards] : source.parameters) {
    if (source.experts.is_expert(name)) continue;  // whose dp ranks are others
    for (const ParameterShard& shard : shards) {
      const auto held = shard.states.find(kFp32State);
      if (held == shard.states.end() || !is_floating(held->second.dtype)) continue;
      for (const ShardFragment& fragment : held->second.fragments) {
        const int mp = shard.pp_rank * source.tp_size + shard.tp_rank;
        Largest& largest = ranks[{mp, fragment.dp_rank}];
        if (!largest.fragment || largest.fragment->numel < fragment.numel)
          largest = {&name, &shard, &fragment, held->second.dtype};
      }
    }
  }
  return ranks;
}

std::string bytes_at_begin(const Largest& largest, uint64_t most) {
  const ShardFragment& fragment = *largest.fragment;
  const auto held = static_cast<uint64_t>(fragment.numel) * element_size(largest.dtype);
  std::string bytes(std::min(most, held), '\0');
  fragment.bytes->read(fragment.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Whether two fragments begin with the same MiB of elements, which are not all alike.
bool are_copies(const Largest& a, const Largest& b) {
  constexpr uint64_t kRead = 1 << 20;
  if (a.fragment->numel != b.fragment->numel || a.dtype != b.dtype) return false;
  const std::string first = bytes_at_begin(a, kRead);
  const auto size = static_cast<size_t>(element_size(a.dtype));
  size_t alike = size;
  while (alike < first.size() && first[alike] == first[alike - size]) ++alike;
  return alike < first.size() && first == bytes_at_begin(b, kRead);
}

void check_sample(const ShardedCheckpoint& source, const ModelWeights& weights) {
  std::map<std::string, const Largest*> known;  // by their first elements
  const FragmentsByRank ranks = largest_fragments(source);
  for (const auto& [rank, largest] : ranks) {
    const ShardFragment& fragment = *largest.fragment;
    const int64_t count = std::min(kMastersSample, fragment.numel);
    const TensorRecord masters = tensor_of(fragment, largest.dtype);
    if (const TensorRecord* weight = weights.of(*largest.name, *largest.shard))
      expect_rounded(*largest.name, masters.slice(0, {count}),
                     weight->slice(fragment.begin, {count}));
    if (source.stage < 3) continue;
    const auto [twin, is_new] =
        known.emplace(bytes_at_begin(largest, kMastersSample * sizeof(float)), &largest);
    if (!is_new && twin->second->shard == largest.shard && are_copies(largest, *twin->second))
      throw DamagedFile(file_of(fragment.bytes).string() +
                        ": has the masters of another rank, those in " +
                        file_of(twin->second->fragment->bytes).string());
  }
}

}  // namespace

std::filesystem::path file_of(const BytesPtr& bytes) {
  const auto places = bytes->size() > 0 ? bytes->places(0, 1) : std::vector<FileRange>();
  return places.empty() ? "a file" : places[0].file;
}

void SameSave::note(const std::string& file, std::string_view key, const Value& value,
                    std::vector<std::string>& lines) {
  if (!value) return;
  const auto [first, is_new] = firsts_.try_emplace(std::string(key), file, value);
  const auto& [other, expected] = first->second;
  if (is_new || value.as_double() == expected.as_double()) return;
  lines.push_back(file + ": " + std::string(key) + " is " + std::to_string(value.as_int()) +
                  ", but " + std::to_string(expected.as_int()) + " in " + other);
}

std::vector<std::string> SameSave::counters(const std::string& file, const Value& contents) {
  std::vector<std::string> lines;
  for (const auto key : {keys::kIteration, keys::kGlobalSteps, keys::kGlobalSamples})
    note(file, key, contents.find(key), lines);
  if (const Value args = contents.find(keys::kArgs))
    note(file, keys::kConsumedTrainSamples, args.find(keys::kConsumedTrainSamples), lines);
  return lines;
}

std::vector<std::string> SameSave::differences(const std::string& file, const Value& contents) {
  std::vector<std::string> lines = counters(file, contents);
  std::vector<Value> steps;
  collect_steps(contents, steps);
  for (const Value& step : steps) note(file, kStepState, step, lines);
  return lines;
}

std::vector<std::string> SameSave::differences_of_ranks(const std::string& file,
                                                        const Value& contents) {
  std::vector<std::string> lines = counters(file, contents);
  note(file, kStepState, highest_step(contents), lines);
  return lines;
}

std::string Unrounded::text() const {
  return string_printf(
      "%lld of %lld elements are not the rounded masters, first element %lld: %.9g, "
      "expected %.9g",
      static_cast<long long>(count), static_cast<long long>(numel), static_cast<long long>(first),
      weight, rounded);
}

Unrounded compare_masters(const TensorRecord& masters, const TensorRecord& weights) {
  Unrounded result{.numel = weights.numel()};
  const bool known = weights.dtype == DType::kFloat32 || weights.dtype == DType::kFloat16 ||
                     weights.dtype == DType::kBFloat16;
  if (!known || !is_floating(masters.dtype)) return result;
  const TensorRecord as_weights = rounded(masters, weights.dtype);
  for (int64_t begin = 0; begin < result.numel; begin += kCompared) {
    const int64_t count = std::min(kCompared, result.numel - begin);
    const std::vector<float> found = floats_at(weights, begin, count),
                             expected = floats_at(as_weights, begin, count);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))) continue;
      if (result.count++ > 0) continue;
      result.first = begin + static_cast<int64_t>(i);
      result.weight = found[i];
      result.rounded = expected[i];
    }
  }
  return result;
}

void expect_rounded(const std::string& name, const TensorRecord& masters,
                    const TensorRecord& weights) {
  const Unrounded unlike = compare_masters(masters, weights);
  if (unlike.count <= unlike.numel / 2) return;
  throw DamagedFile(file_of(masters.bytes).string() +
                    ": its masters are not those of the weights in " +
                    file_of(weights.bytes).string() + ": " + name + ": " + unlike.text() +
                    "; one of these files is of another save, or of another rank");
}

ModelWeights::ModelWeights(const ShardedCheckpoint& source) : source_(source) {
  for (const NamedTensors& tensors : source.model_tensors) {
    auto& weights = by_tp_rank_.emplace_back();
    for (const auto& [name, tensor] : tensors) weights.emplace(name, &tensor);
  }
}

const TensorRecord* ModelWeights::of(const std::string& name, const ParameterShard& shard) const {
  const auto tp = static_cast<size_t>(shard.tp_rank);
  if (tp >= by_tp_rank_.size() || shard.pp_rank != source_.parameters.at(name).front().pp_rank)
    return nullptr;
  const auto found = by_tp_rank_[tp].find(name);
  return found == by_tp_rank_[tp].end() ? nullptr : found->second;
}

void check_same_shapes(const Value& state, const Value& first) {
  SameSave same;
  same.differences(first.where(), first);
  for (const std::string& line : same.differences(state.where(), state))
    throw DamagedFile(line + ": these files are of different saves");
  for (const auto key : {keys::kParamShapes, keys::kFrozenParamShapes}) {
    const Value own = state.find(key), firsts = first.find(key);
    if (own == firsts) continue;
    const auto shapes = shapes_in(own), expected = shapes_in(firsts);
    std::set<std::string> names;
    for (const auto& all : {shapes, expected})
      for (const auto& [name, shape] : all) names.insert(name);
    for (const std::string& name : names) {
      const auto text = [&](const auto& all) {
        return all.contains(name) ? all.at(name) : "absent";
      };
      if (text(shapes) != text(expected))
        throw DamagedFile(state.where() + ": ['" + std::string(key) + "']: " + name + " is " +
                          text(shapes) + ", but " + text(expected) + " in " + first.where());
    }
  }
}

void check_same_save(std::span<const Value> model_states, std::span<const Value> optimizers) {
  SameSave same;
  for (const auto& files : {model_states, optimizers})
    for (const Value& file : files)
      for (const std::string& line : same.differences_of_ranks(file.where(), file))
        throw DamagedFile(line + ": these files are of different saves");
  if (optimizers.empty()) return;
  const Value state = optimizers[0].find(keys::kOptimizerStateDict);
  const Value steps = model_states[0].find(keys::kGlobalSteps), made = highest_step(optimizers[0]);
  if (state.is_dict() && state.find(keys::kFp32FlatGroups)) return;  // may count sub-groups' steps
  // DeepSpeed's wrappers may make a step without gradients at their start.
  if (!steps || !made || made.as_double() <= steps.as_double() + 1) return;
  throw DamagedFile(optimizers[0].where() + ": the optimizer made " +
                    std::to_string(made.as_int()) + " steps, but " + steps.where() + " says " +
                    std::to_string(steps.as_int()) + ": these files are of different saves");
}

void check_steps(const ShardedCheckpoint& source) {
  for (const auto& [name, shards] : source.parameters) {
    const ParameterShard* first = &shards[0];
    for (const ParameterShard& shard : shards) {
      if (shard.pp_rank != first->pp_rank) first = &shard;
      if (shard.step && first->step && shard.step.as_double() != first->step.as_double())
        shard.step.fail("step " + first->step.found() + " for " + name + ", as on tp rank 0");
    }
  }
}

void check_contents(const ShardedCheckpoint& source, bool sample, RecordChecksums* checks) {
  const ModelWeights weights(source);
  for (const auto& [name, shards] : source.parameters) {
    for (const ParameterShard& shard : shards) {
      const TensorRecord* weight = weights.of(name, shard);
      if (!weight || weight->shape == shard.shape) continue;
      throw DamagedFile(file_of(weight->bytes).string() + ": " + name + " has the shape " +
                        to_string(weight->shape) + ", expected " + to_string(shard.shape) +
                        ", as " + std::string(keys::kParamShapes) + " says");
    }
  }
  if (!sample || source.stage == 0) return;  // ZeRO 0's weights have told its masters apart
  const RecordChecksums::Peek peek(checks);
  check_sample(source, weights);
}

}  // namespace anymesh
