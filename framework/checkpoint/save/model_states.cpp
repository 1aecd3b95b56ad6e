#include <ATen/OpMathType.h>

#include <map>
#include <unordered_map>

#include "framework/checkpoint/expert_ranks.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/checkpoint/save/remote_tensors.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/format/write.h"

namespace anymesh {
namespace {

using Records = std::vector<TensorRecord>;  // in the order of the stage's parameters

// Returns the 1-D part of each stage parameter that this rank keeps between steps, by name.
std::unordered_map<std::string, StateTensor> kept_weights(const CheckpointedRun& run) {
  std::unordered_map<std::string, StateTensor> kept;
  if (!run.optimizer.stage().partitions_parameters()) {
    for (const ParamSpec& spec : run.stage.params())
      kept[spec.name] = StateTensor(spec.tensor.detach().view(-1));
    return kept;
  }
  for (const auto& group : run.optimizer.groups()) {
    for (const auto& piece : group.pieces) kept[group.params[piece.param].name] = piece.weight;
  }
  for (const auto& frozen : run.optimizer.frozen()) kept[frozen.spec.name] = frozen.weight;
  for (const ParamSpec& spec : run.stage.params())
    if (spec.buffer) kept[spec.name] = StateTensor(spec.tensor.view(-1));
  return kept;
}

bool is_partitioned(const CheckpointedRun& run, const ParamSpec& spec) {
  return run.optimizer.stage().partitions_parameters() && !spec.buffer;
}

// Returns which rank has which elements of a parameter of stage `pp`.
std::vector<RemoteTensors::Part> parts_of(const CheckpointedRun& run, const ParamSpec& spec,
                                          int pp) {
  const Topology& mesh = run.grid.topology;
  const bool partitioned = is_partitioned(run, spec);
  std::vector<RemoteTensors::Part> parts;
  for (Coord at{.pp = pp}; at.tp < mesh.tp_size; ++at.tp) {
    for (at.dp = 0; at.dp < mesh.dp_size; ++at.dp) {
      if (!spec.counts_at(mesh, at, partitioned)) continue;
      const ShardLayout layout = layout_of(spec, mesh, at);
      const auto [rank, ranks] = partitioned ? spec.replica_at(mesh, at) : std::pair(0, 1);
      const auto [begin, count] = zero3_part(layout.shard_numel(), rank, ranks);
      parts.push_back({mesh.rank_of(at), layout, begin, count});
    }
  }
  return parts;
}

// Returns this rank's tp slice of each parameter of its stage, in the order of params(). At ZeRO 3
// `dense` and `experts` collect the slices over the ranks that hold them. At the other stages they
// are in memory.
Records stage_weights(const CheckpointedRun& run, RemoteTensors& dense, RemoteTensors& experts) {
  Records records;
  const auto kept = kept_weights(run);
  for (const ParamSpec& spec : run.stage.params()) {
    if (!is_partitioned(run, spec)) {
      records.push_back(record_of(spec.tensor));
      continue;
    }
    const int ranks = run.optimizer.replicas_of(spec)->size();
    RemoteTensors::Tensor tensor{run.dtype, spec.tensor.sizes().vec(), {}, {}};
    const ShardLayout whole = ShardLayout::make(tensor.shape, {.replicated = true}, 1, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto [begin, count] = zero3_part(spec.tensor.numel(), rank, ranks);
      tensor.parts.push_back({rank, whole, begin, count});
    }
    if (const auto mine = kept.find(spec.name); mine != kept.end()) tensor.mine = mine->second;
    records.push_back((spec.experts ? experts : dense).add(std::move(tensor)));
  }
  return records;
}

// Returns the whole model, gathered over grid.world: an OrderedDict name -> tensor. It merges tp
// slices and stages, leaves out vocabulary padding, and has a tied weight once. Collective.
Value model_weights(const CheckpointedRun& run, bool exclude_frozen, RemoteTensors& gathered) {
  const Coord& at = run.grid.coord;
  const auto kept = kept_weights(run);
  std::vector<Value::Entry> entries;
  for (const auto& [pp, spec] : params_of_all_stages(run)) {
    if (spec.duplicate || (exclude_frozen && spec.frozen())) continue;
    const torch::Dtype dtype = spec.buffer ? at::toOpMathType(run.dtype) : run.dtype;
    RemoteTensors::Tensor tensor{dtype, spec.shape, parts_of(run, spec, pp), {}};
    const bool sends =
        pp == at.pp && spec.counts_at(run.grid.topology, at, is_partitioned(run, spec));
    if (const auto found = kept.find(spec.name); sends && found != kept.end())
      tensor.mine = found->second;
    entries.emplace_back(spec.name, gathered.add(std::move(tensor)));
  }
  return Value::ordered_dict(std::move(entries));
}

// Returns an entry for each frozen parameter, by name. DeepSpeed lists them from ZeRO 2 on. Here
// the other stages list them too if there are any: readers recognise frozen parameters by the list.
// Experts below ZeRO 3 are in files of their own, since the ranks that share this one differ in
// them.
template <typename Fn>
Value frozen_entries(const CheckpointedRun& run, const SaveOptions& options, Fn&& value_of) {
  const bool listed =
      run.optimizer.stage().partitions_gradients() || !run.optimizer.frozen().empty();
  if (!listed || options.exclude_frozen_parameters) return {};
  std::vector<Value::Entry> entries;
  for (const auto& frozen : run.optimizer.frozen())
    if (!frozen.spec.experts || run.optimizer.stage().partitions_parameters())
      entries.emplace_back(frozen.spec.name, value_of(frozen));
  return Value::ordered_dict(std::move(entries));
}

// Writes `metadata` and the stage's weights, in one file or several. With weights_only it is called
// on dp rank 0 alone.
void write_weights(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                   const Records& weights, const WriteFile& write) {
  const Coord& at = run.grid.coord;
  const int mp_rank = run.grid.model->rank();
  const bool sharded = run.optimizer.stage().partitions_parameters() && !options.weights_only,
             pipeline = run.grid.topology.pp_size > 1;
  NamedTensors module;
  std::map<int, NamedTensors> layers;  // the first stage writes a tied weight
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamSpec& spec = run.stage.params()[i];
    if (options.exclude_frozen_parameters && spec.frozen()) continue;
    if (spec.experts) continue;  // in files of their own; at ZeRO 3 DeepSpeed does not list them
    if (!sharded || !pipeline || spec.buffer) module.emplace_back(spec.name, weights[i]);
    if (!spec.duplicate) layers[spec.layer].emplace_back(spec.name_in_layer(), weights[i]);
  }
  metadata.set(keys::kFrozenParamShapes, frozen_entries(run, options, [](const auto& frozen) {
                 return Value::size(frozen.spec.tensor.sizes().vec());
               }));
  // A pipeline's layer files have the weights and buffers; at ZeRO 3, which has none, only buffers
  // are whole.
  if (!pipeline || (sharded && !module.empty()))
    metadata.set(keys::kModule, Value::ordered_dict({module.begin(), module.end()}));
  if (sharded) return write(zero3_model_states_file(at.dp, mp_rank), metadata, kAlone);
  const auto owner = [&](int turn) {
    return options.weights_only ? kAlone : turn % run.grid.topology.dp_size;
  };
  write(model_states_file(mp_rank), metadata, owner(0));
  if (!pipeline) return;
  for (int turn = 0; const auto& [file, contents] : layer_files(layers, at.tp))
    write(file, contents, owner(turn++));
}

// Writes the files of the experts of `rank` that it has to write. `weights` are of the stage's
// parameters, in their order; those of dense ones are not used.
void write_expert_files(const CheckpointedRun& run, const SaveOptions& options,
                        const ExpertSpread& spread, const Records& weights,
                        const ExpertSpread::Rank& rank, const WriteFile& write) {
  NamedTensors stacked;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamSpec& spec = run.stage.params()[i];
    if (spec.experts && !(options.exclude_frozen_parameters && spec.frozen()))
      stacked.emplace_back(spec.name, weights[i]);
  }
  for (const auto& [file, contents] : expert_files(spread, stacked, rank, run.grid.coord.tp))
    write(file, contents, kAlone);
}

}  // namespace

void write_model_states(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                        const WriteFile& write) {
  const bool sharded = run.optimizer.stage().partitions_parameters();
  Records weights;
  std::map<std::string, TensorRecord> whole;
  for (const ParamSpec& spec : run.stage.params()) {
    weights.push_back(record_of(sharded && !spec.buffer ? torch::empty({0}, spec.tensor.options())
                                                        : spec.tensor));
    if (spec.frozen()) whole[spec.name] = weights.back();
  }
  metadata.set(keys::kFrozenParamFragments, frozen_entries(run, options, [&](const auto& frozen) {
                 return sharded ? record_of(frozen.part) : whole.at(frozen.spec.name);
               }));
  const ExpertSpread experts = ExpertSpread::from(metadata);
  write_weights(run, options, std::move(metadata), weights, write);
  if (!sharded) write_expert_files(run, options, experts, weights, expert_rank(run), write);
}

double write_weights_only(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                          const WriteFile& write) {
  const ExpertSpread spread = ExpertSpread::from(metadata);
  RemoteTensors dense(run.grid.dp), experts(run.grid.edp);
  const Records weights = stage_weights(run, dense, experts);
  metadata.set(keys::kWeightsOnly, true);
  dense.serve([&] { write_weights(run, options, std::move(metadata), weights, write); });
  if (spread.layers.empty()) return dense.seconds();
  ExpertSpread::Rank first = expert_rank(run);  // of edp, which alone writes
  first.edp_size = 1;
  experts.serve([&] { write_expert_files(run, options, spread, weights, first, write); });
  return dense.seconds() + experts.seconds();
}

double write_whole_model(const CheckpointedRun& run, const SaveOptions& options,
                         const WriteFile& write) {
  RemoteTensors gathered(run.grid.world);
  const Value model = model_weights(run, options.exclude_frozen_parameters, gathered);
  all_or_none(*run.grid.world,
              [&] { gathered.serve([&] { write(std::string(kWeightsFile), model, kAlone); }); });
  return gathered.seconds();
}

}  // namespace anymesh
