#include "framework/checkpoint/format/shard_layout.h"
#include "framework/checkpoint/loaders.h"
#include "framework/checkpoint/tensor_io.h"

namespace anymesh {
namespace {

WholeParameter find(const WholeCheckpoint& checkpoint, const ParamSpec& spec) {
  const std::string& name =
      checkpoint.contains(spec.name) || spec.other_name.empty() ? spec.name : spec.other_name;
  if (!checkpoint.contains(name)) {
    std::string names;
    for (const std::string& known : checkpoint.names())
      names += (names.empty() ? "" : ", ") + known;
    TORCH_CHECK(false, checkpoint.path.string(), ": the checkpoint has no parameter ", spec.name,
                name == spec.name ? "" : " or " + name, ". It has: ", names);
  }
  WholeParameter parameter = checkpoint.parameter(name);
  TORCH_CHECK(parameter.shape == spec.shape, checkpoint.path.string(), ": the checkpoint's ",
              spec.name, " is ", to_string(parameter.shape), ", this model's ",
              to_string(spec.shape), " (see the model's flags)");
  return parameter;
}

// How tp cuts a whole tensor into what this rank holds of it.
ShardLayout layout_of(const ParamSpec& spec, const ProcessGrid& grid) {
  CutRule rule{.replicated = spec.split_dim < 0, .dim = std::max(spec.split_dim, 0)};
  if (spec.sub_params > 1)
    rule.parts.assign(spec.sub_params, spec.shape[rule.dim] / spec.sub_params);
  if (spec.vocabulary) rule.padded = spec.tensor.size(0) * grid.topology.tp_size;
  return ShardLayout::make(spec.shape, rule, grid.topology.tp_size, grid.coord.tp);
}

}  // namespace

void load_whole_tensors(const WholeCheckpoint& checkpoint, CheckpointedRun& run,
                        bool weights_only) {
  for (ZeroOptimizer::Group& group : run.optimizer.groups()) {
    for (const ZeroOptimizer::Piece& piece : group.pieces) {
      const ParamSpec& spec = group.params[piece.param];
      const WholeParameter parameter = find(checkpoint, spec);
      const ShardLayout layout = layout_of(spec, run.grid);
      const auto read = [&](StateIndex state, const StateTensor& out) {
        const TensorRecord& record = parameter.states[state];
        const std::string name =
            c10::str(checkpoint.path.string(), ": ", kStateNames[state], " of ", spec.name);
        TORCH_CHECK(record.bytes, name,
                    " is missing; --no-load-optim or --finetune load the weights alone");
        out.fill([&](int64_t at, const torch::Tensor& block) {
          const int64_t begin = piece.param_start + at;
          block.zero_();  // vocabulary padding has no image
          layout.for_each_run(begin, block.numel(), [&](int64_t full, int64_t shard, int64_t n) {
            read_elements(record, full, block.narrow(0, shard - begin, n), name);
          });
        });
      };
      read(kFp32, piece.master);
      if (weights_only) continue;
      read(kExpAvg, piece.exp_avg);
      read(kExpAvgSq, piece.exp_avg_sq);
      TORCH_CHECK(parameter.step, checkpoint.path.string(), ": step of ", spec.name, " is missing");
      run.optimizer.steps = parameter.step.as_int();
    }
  }
}

}  // namespace anymesh
