#include "framework/run/memory_check.h"

#include <ATen/Functions.h>
#include <sys/resource.h>

#include "framework/comm/agreement.h"
#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/zero/stage.h"

namespace anymesh {
namespace {

double state_bytes(const StageModule& stage, const ZeroConfig& zero, const ProcessGrid& grid) {
  const ZeroStage partitions = zero.stage;
  double bytes = 0;
  for (const ParamSpec& spec : stage.params()) {
    const auto numel = static_cast<double>(spec.tensor.numel()),
               width = static_cast<double>(spec.tensor.element_size());
    const double ranks = (spec.experts ? grid.edp : grid.dp)->size(),
                 weights = partitions.partitions_parameters() ? ranks : 1,
                 gradients = partitions.partitions_gradients() ? ranks : 1,
                 states = partitions.partitions_optimizer() ? ranks : 1;
    if (!zero.offload.params_on_disk()) bytes += width * numel / weights;
    if (spec.frozen() || spec.buffer) continue;
    bytes += 4 * numel / gradients;
    if (!zero.offload.optimizer_on_disk()) bytes += (width == 2 ? 12 : 8) * numel / states;
  }
  return bytes;
}

}  // namespace

void check_memory(const StageModule& stage, const Config& config, const ProcessGrid& grid,
                  Communicator& local) {
  const double states = grid.device.is_cpu() ? state_bytes(stage, config.engine.zero, grid) : 0,
               tokens = 2 * sizeof(int64_t) * static_cast<double>(config.batch.micro_batch_size) *
                        config.engine.model.seq_length;
  torch::Tensor here = torch::full({1}, states + tokens, torch::kDouble);
  local.all_reduce(here);
  auto there = static_cast<double>(machine_memory());
  rlimit limit{};
  const char* what = "this machine has ";
  double needed = here.item<double>();
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      states + tokens > static_cast<double>(limit.rlim_cur)) {
    needed = states + tokens;
    there = static_cast<double>(limit.rlim_cur);
    what = "`ulimit -v` allows a process ";
  }
  std::string error;
  if (needed > there && there > 0)
    error = "not enough memory: parameters, gradients and optimizer state take " +
            size_text(states) + " on a rank and the tokens of a --micro-batch-size (" +
            std::to_string(config.batch.micro_batch_size) + ") " + size_text(tokens) + ", " +
            size_text(needed) + " in all, and " + what + size_text(there) +
            "; see the model's sizes (--hidden-size, --num-layers), --micro-batch-size, "
            "--zero-stage and --offload-optimizer, or use more machines";
  throw_together(*grid.world, error);
}

}  // namespace anymesh
