#include "framework/format/sharded/sharded_checkpoint.h"

#include <algorithm>
#include <span>

#include "framework/format/io/file_io.h"
#include "framework/format/sharded/consistency.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tag_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Kind = CheckpointFileName::Kind;

// Returns the largest partition count among an optimizer file's groups, or 0 if it has none.
int64_t partition_count(const Value& optimizer) {
  const Value counts = optimizer.at(keys::kOptimizerStateDict).find(keys::kPartitionCount);
  if (!counts) return 0;
  const std::vector<int64_t> each =
      counts.is_sequence() ? counts.as_ints() : std::vector{counts.as_int()};
  return each.empty() ? 0 : *std::ranges::max_element(each);
}

std::vector<Value> read_all(std::span<const fs::path> files, int threads, RecordChecksums* checks) {
  std::vector<Value> values(files.size());
  parallel_for(files.size(), threads,
               [&](size_t i) { values[i] = read_torch_file(files[i], checks); });
  return values;
}

// Finds tp and pp from checkpoint_parallel_dimensions, which all files have or none. In checkpoints
// from before that key, the number of files of the first layer is tp.
void find_degrees(ShardedCheckpoint& source) {
  const auto mp_size = static_cast<int>(source.model_states.size());
  if (const Value first = source.model_states[0].find(keys::kParallelDimensions)) {
    const Degrees degrees = degrees_of(source.model_states[0]);
    source.tp_size = static_cast<int>(degrees.tp);
    source.pp_size = static_cast<int>(degrees.pp);
    for (const Value& state : source.model_states) {
      const Value own = state.find(keys::kParallelDimensions);
      if (own != first) own.fail("the same dimensions as in rank 0");
    }
  } else {
    const auto& layers = source.layer_files;
    const auto of_first = std::ranges::count_if(
        layers, [&](const auto& file) { return file.first.first == layers.begin()->first.first; });
    source.tp_size = layers.empty() ? mp_size : static_cast<int>(of_first);
    source.pp_size = mp_size / source.tp_size;
  }
  if (source.tp_size < 1 || source.pp_size < 1 ||
      int64_t{source.tp_size} * source.pp_size != mp_size) {
    throw DamagedFile(source.folder.string() + ": tp " + std::to_string(source.tp_size) + " x pp " +
                      std::to_string(source.pp_size) + " needs " +
                      std::to_string(int64_t{source.tp_size} * source.pp_size) +
                      " model-parallel ranks, but there are " + std::to_string(mp_size));
  }
}

void collect_module(const Value& module, const std::string& prefix, NamedTensors& tensors) {
  for (const auto& [key, value] : module.entries()) {
    if (!key.is_string()) continue;
    const std::string name = prefix + key.as_string();
    if (value.is_tensor()) tensors.emplace_back(name, value.as_tensor());
    if (value.is_dict()) collect_module(value, name + ".", tensors);
  }
}

}  // namespace

NamedTensors module_tensors(const Value& model_state) {
  NamedTensors tensors;
  if (const Value module = model_state.find(keys::kModule)) collect_module(module, "", tensors);
  return tensors;
}

std::set<std::string> buffer_names(const Value& model_state) {
  const auto names = model_state.find(keys::kBufferNames).value_or(Value::list()).as_strings();
  return {names.begin(), names.end()};
}

Value config_entry(const Value& config, std::string_view section, std::string_view key) {
  const Value found = config.is_dict() ? config.find(section) : Value();
  return found.is_dict() ? found.find(key) : Value();
}

Value round_robin_gradients(const Value& optimizer) {
  return config_entry(optimizer.find(keys::kDsConfig), keys::kZeroOptimization,
                      keys::kRoundRobinGradients)
      .value_or(false);
}

Degrees degrees_of(const Value& model_state) {
  const Value recorded = model_state.find(keys::kParallelDimensions),
              ranks = model_state.find(keys::kMpWorldSize);
  if (!recorded) return {.tp = ranks.value_or(1).as_int()};
  const Degrees degrees{recorded.at(keys::kTpDegree).as_int(),
                        recorded.at(keys::kPpDegree).as_int()};
  const bool ulysses = degrees.tp > 1 && degrees.pp == 1 && ranks && ranks.as_int() == 1;
  return ulysses ? Degrees{} : degrees;
}

bool is_megatrons(const Value& model_state) {
  return model_state.find(keys::kArgs) && !model_state.find(keys::kDropoutSeed);
}

std::vector<NamedShape> named_shapes(const Value& dict) {
  std::vector<NamedShape> shapes;
  for (const auto& [name, shape] : dict.entries())
    shapes.push_back({name.as_string(), shape.as_shape()});
  return shapes;
}

std::vector<std::string> names_of(const std::vector<NamedShape>& parameters) {
  std::vector<std::string> names;
  for (const NamedShape& parameter : parameters) names.push_back(parameter.name);
  return names;
}

std::set<std::string> buffer_names(const ShardedCheckpoint& source) {
  std::set<std::string> names;
  for (const Value& state : source.model_states) names.merge(buffer_names(state));
  return names;
}

namespace {

// Drops all optimizer states if some were refused: no state is kept for only some parameters.
void drop_refused_states(ShardedCheckpoint& source) {
  if (source.states_refused.empty()) return;
  source.optimizer_state = {};
  source.optimizers.clear();
  source.groups.clear();
  for (auto& [name, shards] : source.parameters) {
    for (ParameterShard& shard : shards) {
      std::erase_if(shard.states, [](const auto& state) { return state.first != kFp32State; });
      shard.step = {};
      shard.numbers.clear();
    }
  }
}

// Leaves the reads that find the parameters' order uncounted: whoever wants the tensors reads them
// again.
class Uncounted {
 public:
  explicit Uncounted(RecordChecksums* checks) : checks_(checks) {
    if (checks_) checks_->count(false);
  }
  ~Uncounted() {
    if (checks_) checks_->count(true);
  }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  RecordChecksums* checks_;
};

bool has_frozen_parameters(const Value& model_state) {
  const Value shapes = model_state.find(keys::kFrozenParamShapes);
  return shapes && shapes.size() > 0;
}

// Reads the model-states files, and finds the mesh.
void read_models(ShardedCheckpoint& source, const RankFiles& models, int threads,
                 RecordChecksums* checks) {
  const int64_t mp_size = next_rank(models, &Ranks::second);
  check_complete(source.folder, models, dp_size_of(models), mp_size);
  source.metadata_files = paths_of(models);
  const auto first = static_cast<size_t>(mp_size);
  source.model_states.resize(first);
  std::vector<std::vector<std::byte>> pickles(first);  // most dp ranks have the same ones
  source.frozen_parts.resize(source.metadata_files.size());
  const auto read = [&](size_t i) {
    const ZipReader zip = open_torch_file(source.metadata_files[i]);
    Value& model_state = source.model_states[i % first];
    const bool has_frozen = model_state && has_frozen_parameters(model_state);
    if (i >= first && !has_frozen && read_pickle(zip) == pickles[i % first]) return;
    const Value state = read_torch_file(zip, checks);
    if (i < first) {
      model_state = state;
      if (source.metadata_files.size() > first) pickles[i] = read_pickle(zip);
    } else {
      check_same_shapes(state, model_state);
    }
    if (has_frozen_parameters(state))
      source.frozen_parts[i] = state.at(keys::kFrozenParamFragments);
  };
  parallel_for(first, threads, read);
  parallel_for(source.frozen_parts.size() - first, threads, [&](size_t i) { read(first + i); });
  const Value& metadata = source.model_states[0];
  if (const Value recorded = metadata.find(keys::kParallelDimensions)) {
    const auto [tp, pp] = degrees_of(metadata);
    if (tp > 0 && pp > 0 && tp < mp_size && pp < mp_size)
      refuse_left_over(source.folder, models, &Ranks::second, tp * pp, recorded.where());
  }
  find_degrees(source);
  source.experts = ExpertSpread::from(source.model_states);
  source.weights_only = !metadata.find(keys::kWeightsOnly).is_none();
  check_same_save(source.model_states, {});
}

// Reads the optimizer files, and assigns their partitions to parameters.
void read_optimizers(ShardedCheckpoint& source, const RankFiles& models,
                     const RankFiles& optimizers, int threads, RecordChecksums* checks) {
  const fs::path& folder = source.folder;
  const auto mp_size = static_cast<int64_t>(source.model_states.size());
  int64_t dp_size = std::max(dp_size_of(models), next_rank(optimizers, &Ranks::first));
  if (const Value recorded = source.model_states[0].find(keys::kDpWorldSize);
      recorded && recorded.as_int() > dp_size) {
    if (recorded.as_int() > 1 << 20) recorded.fail("a plausible number of ranks");
    dp_size = recorded.as_int();
  }
  // Each mp rank with an optimizer file must have a model-states file.
  check_complete(folder, models, dp_size_of(models),
                 std::max(mp_size, next_rank(optimizers, &Ranks::second)));
  check_complete(folder, optimizers, dp_size, mp_size);
  source.dp_size = static_cast<int>(dp_size);
  const std::vector<Value> states = read_all(paths_of(optimizers), threads, checks);
  if (const int64_t saved = partition_count(states[0]); saved > 0) {
    for (const RankFiles* each : {&optimizers, &models})
      refuse_left_over(folder, *each, &Ranks::first, saved,
                       states[0].where() + ": " + std::string(keys::kPartitionCount));
  }
  const Value stage = states[0].at(keys::kOptimizerStateDict).find(keys::kZeroStage);
  source.stage = zero_stage_of(stage.value_or(1));  // BF16_Optimizer does not record it
  take_older_shapes(source, states);
  if (source.stage == 3) {
    read_zero3(source, states);
  } else {
    if (name_mapped_parameters(source, states)) source.stage = 0;
    read_model_tensors(source, threads, checks);
    read_zero12(source, states);
  }
  check_steps(source);
  check_same_save(source.model_states, states);
}

ExpertOptimizers read_experts_optimizers(const RankFiles& files, int threads,
                                         RecordChecksums* checks) {
  const std::vector<Value> values = read_all(paths_of(files), threads, checks);
  ExpertOptimizers optimizers;
  size_t i = 0;
  for (const auto& [ranks, path] : files)
    optimizers[ranks.second].emplace_back(ranks.first, values[i++].at(keys::kOptimizer));
  return optimizers;
}

// Puts the fragments of experts in the order of their elements: dp ranks take turns at them.
void sort_fragments(ShardedCheckpoint& source) {
  for (auto& [name, shards] : source.parameters) {
    if (!source.experts.layer_of(name)) continue;
    for (ParameterShard& shard : shards)
      for (auto& [state, held] : shard.states)
        std::ranges::stable_sort(held.fragments, {}, &ShardFragment::begin);
  }
}

}  // namespace

ShardedCheckpoint open_sharded_checkpoint(const fs::path& folder, int threads,
                                          RecordChecksums* checks, bool module_order) {
  ShardedCheckpoint source;
  source.folder = folder;
  std::map<Kind, RankFiles> files = find_files(folder);
  const bool zero3 = !files.contains(Kind::kModelStates);
  RankFiles &models = files[zero3 ? Kind::kZero3ModelStates : Kind::kModelStates],
            &optimizers = files[Kind::kOptimStates];
  const fs::path first = models.begin()->second;
  for (RankFiles* each : {&models, &optimizers}) drop_sequence_ranks(*each, first);
  source.layer_files = files[Kind::kLayer];
  source.expert_files = find_expert_files(folder);
  read_models(source, models, threads, checks);
  const Uncounted uncounted(checks);
  if (!source.weights_only && !optimizers.empty()) {
    read_optimizers(source, models, optimizers, threads, checks);
  } else if (!source.weights_only && zero3) {
    throw DamagedFile(folder.string() +
                      ": has no *_optim_states.pt. It holds: " + list_folder(folder));
  } else {
    const Value dp_size = source.model_states[0].find(keys::kDpWorldSize);
    source.dp_size = static_cast<int>(dp_size.value_or(1).as_int());
    read_model_tensors(source, threads, checks);
    if (source.weights_only) {
      read_weights(source);
    } else {
      read_zero0(source, read_experts_optimizers(files[Kind::kExpertOptim], threads, checks),
                 module_order);
    }
  }
  sort_fragments(source);
  check_contents(source, /*sample=*/checks != nullptr, checks);
  drop_refused_states(source);
  return source;
}

}  // namespace anymesh
