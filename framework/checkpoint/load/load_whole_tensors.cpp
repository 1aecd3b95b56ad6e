#include "framework/checkpoint/load/load_whole_tensors.h"

#include "framework/checkpoint/torch_bridge.h"

namespace anymesh {
namespace {

// Finds a parameter in the checkpoint. `custom` may supply its weight.
SavedParameter find(const Checkpoint& checkpoint, const ParamSpec& spec,
                    const CustomLoadFn& custom) {
  const auto weight = custom ? custom(checkpoint, spec) : std::nullopt;
  if (!weight) return find_parameter(checkpoint, spec);
  SavedParameter parameter;
  if (checkpoint.contains(spec.name)) parameter = checkpoint.parameter(spec.name);
  if (parameter.shape != spec.shape) parameter = {};  // its moments would not fit
  parameter.shape = weight->sizes().vec();
  parameter.states[std::string(kFp32State)] = record_of(weight->contiguous());
  TORCH_CHECK(parameter.shape == spec.shape, "custom_load_fn: gave ", spec.name, " as ",
              to_string(parameter.shape), ", expected ", to_string(spec.shape));
  return parameter;
}

// Refuses states of another optimizer, or of Adam with amsgrad, because they would be lost.
void check_states(const Checkpoint& checkpoint, const SavedParameter& parameter,
                  const std::string& name, const Optimizer& optimizer) {
  const auto whole = optimizer.whole_states(parameter.shape);
  for (const auto& [state, tensor] : parameter.states)
    TORCH_CHECK(state == kFp32State || has_state(optimizer, state) ||
                    std::ranges::count(whole, state, &Optimizer::WholeState::name) > 0,
                checkpoint.path.string(), ": ", name, " has the optimizer state ", state,
                ", which this run's ", optimizer.name(),
                " has not; --no-load-optim or --finetune load the weights alone");
}

}  // namespace

void load_whole_states(ZeroOptimizer& optimizer, const WholeStateOf& state_of) {
  for (ZeroOptimizer::Group& group : optimizer.groups()) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      const ParamSpec& spec = group.params[i];
      const auto states = group.optimizer->whole_states(spec.shape);
      for (size_t s = 0; s < states.size(); ++s) {
        const auto& [name, shape] = states[s];
        const torch::Tensor& out = group.whole_states[i][s];
        const auto record = state_of(spec, name);
        if (!record) {
          out.zero_();
          continue;
        }
        TORCH_CHECK(record->shape == shape, name, " of ", spec.name, " is ",
                    to_string(record->shape), " in the checkpoint, and ", to_string(shape),
                    " in this run's ", group.optimizer->name());
        read_elements(*record, 0, StateTensor(out.view(-1)), c10::str(name, " of ", spec.name));
      }
    }
  }
}

SavedParameter find_parameter(const Checkpoint& checkpoint, const ParamSpec& spec) {
  const std::string& name = checkpoint.contains(spec.name) ? spec.name : spec.other_name;
  if (!checkpoint.contains(name)) return {};
  SavedParameter parameter = checkpoint.parameter(name);
  TORCH_CHECK(parameter.shape == spec.shape, checkpoint.path.string(), ": the checkpoint's ",
              spec.name, " is ", to_string(parameter.shape), ", this model's ",
              to_string(spec.shape), " (see the model's flags)");
  return parameter;
}

std::vector<std::string> load_whole_tensors(const Checkpoint& checkpoint, CheckpointedRun& run,
                                            bool weights_only, const CustomLoadFn& custom,
                                            RecordChecksums& checks, StepsRead& steps) {
  std::vector<std::string> fresh;
  const auto count = [&](const ParamSpec& spec, bool partitioned) {
    checks.count(run.optimizer.counts_here(spec, partitioned));
  };
  const auto read = [&](const SavedParameter& parameter, std::string_view state,
                        const ParamSpec& spec, int64_t begin, const StateTensor& out) {
    const TensorRecord record = parameter.state(state);
    const std::string name = c10::str(checkpoint.path.string(), ": ", state, " of ", spec.name);
    TORCH_CHECK(record.bytes, name,
                " is missing; --no-load-optim or --finetune load the weights alone");
    const ShardLayout layout = layout_of(spec, run.grid.topology, run.grid.coord);
    out.fill([&](int64_t at, const torch::Tensor& block) {
      read_slice(record, layout, begin + at, block, name);
    });
  };
  for (const auto& frozen : run.optimizer.frozen()) {
    const SavedParameter parameter = find(checkpoint, frozen.spec, custom);
    count(frozen.spec, run.optimizer.stage().partitions_parameters());
    if (parameter.weight().bytes)
      read(parameter, kFp32State, frozen.spec, frozen.start, frozen.weight);
  }
  for (const ParamSpec& spec : run.stage.params()) {
    if (!spec.buffer) continue;
    const SavedParameter parameter = find(checkpoint, spec, custom);
    count(spec, /*partitioned=*/false);
    if (parameter.weight().bytes)
      read(parameter, kFp32State, spec, 0, StateTensor(spec.tensor.view(-1)));
  }
  for (ZeroOptimizer::Group& group : run.optimizer.groups()) {
    for (const ZeroOptimizer::Piece& piece : group.pieces) {
      const ParamSpec& spec = group.params[piece.param];
      const SavedParameter parameter = find(checkpoint, spec, custom);
      if (parameter.weight().bytes) {
        count(spec, run.optimizer.stage().partitions_optimizer());
        read(parameter, kFp32State, spec, piece.param_start, piece.master);
      }
      if (weights_only) continue;
      check_states(checkpoint, parameter, spec.name, *group.optimizer);
      const std::vector<std::string> names = group.optimizer->states();
      if (!names.empty() && !parameter.has_moments()) {
        for (const StateTensor& state : piece.states)
          state.fill([](int64_t, const torch::Tensor& block) { block.zero_(); });
        fresh.push_back(spec.name);
        continue;
      }
      for (size_t i = 0; i < names.size(); ++i)
        read(parameter, names[i], spec, piece.param_start, piece.states[i]);
      if (!group.optimizer->counts_steps()) continue;
      TORCH_CHECK(parameter.step, checkpoint.path.string(), ": step of ", spec.name, " is missing");
      steps.emplace(parameter.step.as_int(), spec.name);
    }
  }
  if (!weights_only)
    load_whole_states(run.optimizer, [&](const ParamSpec& spec, const std::string& state) {
      const SavedParameter parameter = find(checkpoint, spec, custom);
      count(spec, /*partitioned=*/false);
      std::optional<TensorRecord> record;
      if (parameter.has_moments()) record = parameter.state(state);
      TORCH_CHECK(!record || record->bytes, checkpoint.path.string(), ": ", state, " of ",
                  spec.name, " is missing; --no-load-optim or --finetune load the weights alone");
      return record;
    });
  return fresh;
}

}  // namespace anymesh
