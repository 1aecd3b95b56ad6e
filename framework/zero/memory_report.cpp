#include "framework/zero/memory_report.h"

#include <algorithm>

#include "framework/comm/agreement.h"
#include "framework/util/format.h"
#include "framework/zero/memory_form.h"

namespace anymesh {
namespace {

// Returns the bytes in memory; 0 for state on disk.
int64_t bytes_of(const StateTensor& state) {
  const torch::Tensor& t = state.tensor();
  return t.defined() ? static_cast<int64_t>(t.storage().nbytes()) : 0;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::vector<MemoryPart> kept_memory(const ZeroOptimizer& optimizer) {
  const ZeroStage stage = optimizer.stage();
  const bool params_on_disk = optimizer.config().offload.params_on_disk(),
             state_on_disk = optimizer.config().offload.optimizer_on_disk();
  MemoryPart parameters{"parameters"}, gradients{"gradients"}, state{"optimizer state"},
      copies{"tied copies"}, buffers{"offload buffers"};
  KeptBytes kept;
  for (const auto& group : optimizer.groups()) {
    KeptGroup shape{.ranks = group.partitions->size(),
                    .width = static_cast<int64_t>(group.params[0].tensor.element_size()),
                    .states = static_cast<int64_t>(group.states.size()),
                    .exact = group.sums.scalar_type() == torch::kLong,
                    .params_on_disk = params_on_disk,
                    .state_on_disk = state_on_disk};
    for (const ParamSpec& spec : group.params) {
      shape.numel += spec.tensor.numel();
      if (spec.second_use.defined()) shape.tied += spec.tensor.numel();
      parameters.allocated += bytes_of(spec.tensor);
    }
    add_kept_bytes(shape, stage, kept);
    parameters.allocated += bytes_of(group.weights);
    gradients.allocated += bytes_of(group.sums);
    if (shape.exact) gradients.allocated += bytes_of(group.gradient);
    state.allocated += bytes_of(group.master);
    for (const StateTensor& own : group.states) state.allocated += bytes_of(own);
    for (const auto& whole : group.whole_states)
      for (const torch::Tensor& own : whole) {
        state.allocated += bytes_of(own);
        state.closed_form += 4 * own.numel();
      }
  }
  parameters.closed_form = kept.parameters;
  gradients.closed_form = kept.gradients;
  state.closed_form += kept.state;
  copies.closed_form = kept.copies;
  buffers.closed_form = kept.buffers;
  for (const auto& frozen : optimizer.frozen()) {
    parameters.allocated += bytes_of(frozen.part);
    const auto whole = static_cast<int64_t>(frozen.spec.tensor.nbytes());
    const int64_t parts =
        stage.partitions_parameters() ? optimizer.partitions_of(frozen.spec)->size() : 1;
    if (!params_on_disk) parameters.closed_form += whole / parts;
  }
  copies.allocated = optimizer.second_use_bytes();
  buffers.allocated = optimizer.offload_buffer_bytes();
  std::vector<MemoryPart> parts{parameters, gradients, state, copies};
  // Either all ranks have this row or none, even a rank whose stage is frozen, because the rows are
  // compared.
  if (state_on_disk || params_on_disk) parts.push_back(buffers);
  return parts;
}

}  // namespace

std::string memory_forecast(Communicator& world, const ZeroOptimizer& optimizer) {
  int64_t sum = 0;
  std::string parts;
  for (const MemoryPart& part : kept_memory(optimizer)) {
    sum += part.closed_form;
    const int64_t most = max_over(world, part.closed_form);
    if (most > 0)
      parts += string_printf("%s%s %.1f", parts.empty() ? ": " : ", ", part.name, mib(most));
  }
  return string_printf("%.1f MiB on the largest rank", mib(max_over(world, sum))) + parts;
}

std::vector<MemoryPart> memory_report(Communicator& world, const ZeroOptimizer& optimizer,
                                      const ByteGauge& allocated) {
  std::vector<MemoryPart> rows;
  const auto add = [&](const char* name, int64_t bytes, int64_t closed_form = -1) {
    rows.push_back({name, max_over(world, bytes), max_over(world, closed_form)});
  };
  int64_t allocated_sum = 0, closed_sum = 0;
  for (const MemoryPart& part : kept_memory(optimizer)) {
    add(part.name, part.allocated, part.closed_form);
    allocated_sum += part.allocated;
    closed_sum += part.closed_form;
  }
  const int64_t buckets = optimizer.bucket_bytes().peak, in_flight = optimizer.in_flight_bytes();
  add("kept between steps, by part", allocated_sum, closed_sum);
  add("kept between steps, by the allocator", allocated.now, closed_sum);
  add("gradient buckets, peak", buckets);
  add("layers in flight, peak", in_flight);
  add("activations and the rest, peak", allocated.peak - allocated.now - buckets - in_flight);
  add("everything, peak", allocated.peak);
  return rows;
}

std::vector<std::string> memory_lines(const std::vector<MemoryPart>& rows) {
  std::vector<std::string> lines{
      "memory: MiB of the largest rank           allocated  closed form"};
  for (const auto& [name, allocated, closed_form] : rows) {
    lines.push_back(string_printf("memory: %-34s %12.3f", name, mib(allocated)));
    if (closed_form >= 0) lines.back() += string_printf(" %12.3f", mib(closed_form));
  }
  return lines;
}

}  // namespace anymesh
