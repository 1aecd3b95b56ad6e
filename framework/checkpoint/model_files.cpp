#include "framework/checkpoint/model_files.h"

#include <map>

#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/tensor_io.h"
#include "framework/checkpoint/whole_weights.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

using Records = std::vector<TensorRecord>;  // in the order of the stage's parameters

// Calls fn(spec, record) for what the files are to hold.
template <typename Fn>
void for_each_saved(const CheckpointedRun& run, const SaveOptions& options, const Records& weights,
                    Fn&& fn) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamSpec& spec = run.stage.params()[i];
    if (!options.exclude_frozen_parameters || !spec.frozen()) fn(spec, weights[i]);
  }
}

// What is not trained, by name. DeepSpeed lists it from ZeRO 2 on; here the other stages do too if there
// is any, since it is what readers know it by.
template <typename Fn>
Value frozen_entries(const CheckpointedRun& run, const SaveOptions& options, Fn&& value_of) {
  const bool listed = run.optimizer.options().stage >= 2 || !run.optimizer.frozen().empty();
  if (!listed || options.exclude_frozen_parameters) return {};
  std::vector<Value::Entry> entries;
  for (const auto& frozen : run.optimizer.frozen())
    entries.emplace_back(frozen.spec.name, value_of(frozen));
  return Value::ordered_dict(std::move(entries));
}

void write_weights(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                   const Records& weights, const WriteFile& write) {
  const Coord& at = run.grid.coord;
  const int mp_rank = run.grid.model->rank();
  const bool sharded = run.optimizer.options().stage == 3 && !options.weights_only,
             pipeline = run.grid.topology.pp_size > 1;
  std::vector<Value::Entry> module;
  std::map<int, std::vector<Value::Entry>> layers;  // a tied copy is the first stage's to write
  for_each_saved(run, options, weights, [&](const ParamSpec& spec, const TensorRecord& weight) {
    module.emplace_back(spec.name, weight);
    if (!spec.duplicate) layers[spec.layer].emplace_back(spec.name_in_layer(), weight);
  });
  if (!pipeline) metadata.set(keys::kModule, Value::ordered_dict(std::move(module)));
  if (sharded) return write(zero3_model_states_file(at.dp, mp_rank), metadata, kAlone);
  const auto write_shared = [&](const std::string& name, const Value& value, int turn) {
    if (!options.weights_only) return write(name, value, turn % run.grid.topology.dp_size);
    if (at.dp == 0) write(name, value, kAlone);
  };
  write_shared(model_states_file(mp_rank), metadata, 0);
  if (!pipeline) return;
  for (int turn = 0; auto& [layer, entries] : layers)
    write_shared(layer_states_file(layer, at.tp), Value::ordered_dict(std::move(entries)), turn++);
}

Value with_frozen_shapes(const CheckpointedRun& run, const SaveOptions& options, Value metadata) {
  const Value shapes = frozen_entries(run, options, [](const auto& frozen) {
    return Value::size(frozen.spec.tensor.sizes().vec());
  });
  return metadata.set(keys::kFrozenParamShapes, shapes);
}

}  // namespace

void write_model_states(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                        const WriteFile& write) {
  const bool sharded = run.optimizer.options().stage == 3;
  Records weights;
  std::map<std::string, TensorRecord> whole;
  for (const ParamSpec& spec : run.stage.params()) {
    weights.push_back(record_of(sharded ? torch::empty({0}, spec.tensor.options()) : spec.tensor));
    if (spec.frozen()) whole[spec.name] = weights.back();
  }
  metadata = with_frozen_shapes(run, options, std::move(metadata));
  metadata.set(keys::kFrozenParamFragments, frozen_entries(run, options, [&](const auto& frozen) {
                 return sharded ? record_of(frozen.part) : whole.at(frozen.spec.name);
               }));
  write_weights(run, options, std::move(metadata), weights, write);
}

double write_weights_only(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                          const WriteFile& write) {
  GatheredTensors gathered(run.grid.dp);
  const Records weights = stage_weights(run, gathered);
  metadata = with_frozen_shapes(run, options, std::move(metadata));
  metadata.set(keys::kWeightsOnly, true);
  gathered.serve([&] { write_weights(run, options, std::move(metadata), weights, write); });
  return gathered.seconds();
}

double write_whole_model(const CheckpointedRun& run, const SaveOptions& options,
                         const WriteFile& write) {
  GatheredTensors gathered(run.grid.world);
  const Value model = model_weights(run, options.exclude_frozen_parameters, gathered);
  all_or_none(*run.grid.world,
              [&] { gathered.serve([&] { write(std::string(kWeightsFile), model, kAlone); }); });
  return gathered.seconds();
}

}  // namespace anymesh
