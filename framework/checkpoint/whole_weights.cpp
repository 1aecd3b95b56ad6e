#include "framework/checkpoint/whole_weights.h"

#include <sstream>
#include <unordered_map>

#include "framework/checkpoint/format/partition.h"
#include "framework/checkpoint/loaders.h"
#include "framework/checkpoint/tensor_io.h"
#include "framework/comm/agreement.h"
#include "framework/storage.h"

namespace anymesh {
namespace {

// What this rank keeps of each parameter of its stage between steps, 1-D, by name.
std::unordered_map<std::string, StateTensor> kept_weights(const CheckpointedRun& run) {
  std::unordered_map<std::string, StateTensor> kept;
  if (run.optimizer.options().stage < 3) {
    for (const ParamSpec& spec : run.stage.params())
      kept[spec.name] = StateTensor(spec.tensor.detach().view(-1));
    return kept;
  }
  for (const auto& group : run.optimizer.groups()) {
    for (const auto& piece : group.pieces) kept[group.params[piece.param].name] = piece.weight;
  }
  for (const auto& frozen : run.optimizer.frozen()) kept[frozen.spec.name] = frozen.weight;
  return kept;
}

// A parameter of stage `pp`, for the ranks of other stages.
std::string line_of(int pp, const ParamSpec& spec) {
  std::string line = c10::str(pp, " ", spec.name, " ", spec.split_dim, " ", spec.sub_params, " ",
                              spec.vocabulary, " ", spec.tensor.size(0), " ", spec.shape.size());
  for (const int64_t size : spec.shape) line += c10::str(" ", size);
  return line;
}

std::pair<int, ParamSpec> spec_of(const std::string& line, torch::Dtype dtype) {
  std::istringstream in(line);
  int pp = 0;
  ParamSpec spec;
  int64_t rows = 0;
  size_t dims = 0;
  in >> pp >> spec.name >> spec.split_dim >> spec.sub_params >> spec.vocabulary >> rows >> dims;
  spec.shape.resize(dims);
  for (int64_t& size : spec.shape) in >> size;
  spec.tensor = hollow({rows}, dtype);
  return {pp, std::move(spec)};
}

// Who has which elements of a parameter of stage `pp`.
std::vector<GatheredTensors::Part> parts_of(const CheckpointedRun& run, const ParamSpec& spec,
                                            int pp) {
  const Topology& mesh = run.grid.topology;
  const int slices = spec.split_dim < 0 ? 1 : mesh.tp_size,
            ranks = run.optimizer.options().stage == 3 ? mesh.dp_size : 1;
  std::vector<GatheredTensors::Part> parts;
  for (int tp = 0; tp < slices; ++tp) {
    const ShardLayout layout = layout_of(spec, mesh.tp_size, tp);
    for (int dp = 0; dp < ranks; ++dp) {
      const auto [begin, count] = zero3_part(layout.shard_numel(), dp, ranks);
      parts.push_back({mesh.rank_of({.pp = pp, .dp = dp, .tp = tp}), layout, begin, count});
    }
  }
  return parts;
}

}  // namespace

std::vector<TensorRecord> stage_weights(const CheckpointedRun& run, GatheredTensors& gathered) {
  std::vector<TensorRecord> records;
  if (run.optimizer.options().stage < 3) {
    for (const ParamSpec& spec : run.stage.params()) records.push_back(record_of(spec.tensor));
    return records;
  }
  const auto kept = kept_weights(run);
  const int ranks = run.grid.topology.dp_size;
  for (const ParamSpec& spec : run.stage.params()) {
    GatheredTensors::Tensor tensor{run.dtype, spec.tensor.sizes().vec(), {}, {}};
    const ShardLayout whole = ShardLayout::make(tensor.shape, {.replicated = true}, 1, 0);
    for (int dp = 0; dp < ranks; ++dp) {
      const auto [begin, count] = zero3_part(spec.tensor.numel(), dp, ranks);
      tensor.parts.push_back({dp, whole, begin, count});
    }
    if (const auto mine = kept.find(spec.name); mine != kept.end()) tensor.mine = mine->second;
    records.push_back(gathered.add(std::move(tensor)));
  }
  return records;
}

Value model_weights(const CheckpointedRun& run, bool exclude_frozen, GatheredTensors& gathered) {
  const Coord& at = run.grid.coord;
  std::vector<std::string> mine;
  for (const ParamSpec& spec : run.stage.params()) {
    if (!spec.duplicate && !(exclude_frozen && spec.frozen())) mine.push_back(line_of(at.pp, spec));
  }
  const auto kept = kept_weights(run);
  std::vector<Value::Entry> entries;
  for (const std::string& line : gather_lines(*run.grid.pp, mine)) {
    const auto [pp, spec] = spec_of(line, run.dtype);
    GatheredTensors::Tensor tensor{run.dtype, spec.shape, parts_of(run, spec, pp), {}};
    const bool sends = pp == at.pp && (spec.split_dim >= 0 || at.tp == 0) &&
                       (run.optimizer.options().stage == 3 || at.dp == 0);
    if (const auto found = kept.find(spec.name); sends && found != kept.end())
      tensor.mine = found->second;
    entries.emplace_back(spec.name, gathered.add(std::move(tensor)));
  }
  return Value::ordered_dict(std::move(entries));
}

}  // namespace anymesh
