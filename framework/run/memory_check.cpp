#include "framework/run/memory_check.h"

#include <ATen/Functions.h>
#include <sys/resource.h>

#include "framework/comm/agreement.h"
#include "framework/optim/optimizer.h"
#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/zero/memory_form.h"

namespace anymesh {
namespace {

double state_bytes(const StageModule& stage, const ZeroConfig& zero, const ProcessGrid& grid) {
  const ZeroStage partitions = zero.stage;
  const auto optimizer = make_optimizer(zero.optimizer);
  const bool params_on_disk = zero.offload.params_on_disk();
  KeptNumbers<double> kept;
  for (const ParamSpec& spec : stage.params()) {
    const int64_t ranks = (spec.experts ? grid.edp : grid.dp)->size(),
                  width = static_cast<int64_t>(spec.tensor.element_size());
    if (spec.frozen() || spec.buffer) {
      const int64_t parts = partitions.partitions_parameters() ? ranks : 1;
      if (!params_on_disk)
        kept.parameters += static_cast<double>(width) * static_cast<double>(spec.tensor.numel()) /
                           static_cast<double>(parts);
      continue;
    }
    add_kept_bytes({.numel = spec.tensor.numel(),
                    .ranks = ranks,
                    .width = width,
                    .states = static_cast<int64_t>(optimizer->of(spec).states().size()),
                    .exact = grid.same_bits.blocks > 0,
                    .params_on_disk = params_on_disk,
                    .state_on_disk = zero.offload.optimizer_on_disk()},
                   partitions, kept);
  }
  return kept.parameters + kept.gradients + kept.state;
}

}  // namespace

double activation_bytes(const Config& config, int64_t width, bool is_last_stage) {
  const ModelFacts& model = config.engine.model;
  const ParallelConfig& mesh = config.parallel;
  const double tokens = static_cast<double>(config.batch.micro_batch_size) * model.seq_length,
               layers = static_cast<double>(model.layers / mesh.pp),
               input =
                   static_cast<double>(model.kept_input) / (mesh.sequence_parallel ? mesh.tp : 1),
               inside = static_cast<double>(model.kept_inside) / mesh.tp,
               logits = static_cast<double>(is_last_stage ? model.padded_vocab_size : 0) / mesh.tp,
               insides = config.engine.activation_checkpointing ? 0 : layers;  // not recomputed
  // A layer of which nothing is trained may keep nothing.
  const bool is_trained = config.engine.freeze.empty() && model.adapter_flags.empty();
  return static_cast<double>(width) * tokens *
         (logits + (is_trained ? layers * input + insides * inside : 0));
}

void check_memory(const StageModule& stage, const Config& config, const ProcessGrid& grid,
                  Communicator& local) {
  const bool on_host = grid.device.is_cpu();
  const int64_t width = config.precision.bf16 || config.precision.fp16 ? 2 : 4;
  const double states = on_host ? state_bytes(stage, config.engine.zero, grid) : 0,
               tokens = 2 * sizeof(int64_t) * static_cast<double>(config.batch.micro_batch_size) *
                        config.engine.model.seq_length,
               activations = on_host ? activation_bytes(config, width, grid.is_last_stage()) : 0,
               mine = states + tokens + activations;
  torch::Tensor here = torch::full({1}, mine, torch::kDouble);
  local.all_reduce(here);
  auto there = static_cast<double>(machine_memory());
  rlimit limit{};
  const char* what = "this machine has ";
  double needed = here.item<double>();
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      mine > static_cast<double>(limit.rlim_cur)) {
    needed = mine;
    there = static_cast<double>(limit.rlim_cur);
    what = "`ulimit -v` allows a process ";
  }
  std::string error;
  if (needed > there && there > 0)
    error = "not enough memory: parameters, gradients and optimizer state take " +
            size_text(states) + " on a rank, the tokens of a --micro-batch-size (" +
            std::to_string(config.batch.micro_batch_size) + ") " + size_text(tokens) +
            ", and its activations at least " + size_text(activations) + "; that is " +
            size_text(needed) + " in all, and " + what + size_text(there) +
            "; see the model's sizes (--hidden-size, --num-layers, --seq-length), "
            "--micro-batch-size, --activation-checkpointing, --zero-stage and "
            "--offload-optimizer, or use more machines";
  throw_together(*grid.world, error);
}

}  // namespace anymesh
