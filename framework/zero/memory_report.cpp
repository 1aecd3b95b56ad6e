#include "framework/zero/memory_report.h"

#include <algorithm>

#include "framework/comm/agreement.h"
#include "framework/util/format.h"

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
  for (const auto& group : optimizer.groups()) {
    const int64_t ranks = group.partitions->size(),
                  parameter_parts = stage.partitions_parameters() ? ranks : 1,
                  gradient_parts = stage.partitions_gradients() ? ranks : 1;
    int64_t numel = 0, tied = 0;
    for (const ParamSpec& spec : group.params) {
      numel += spec.tensor.numel();
      if (spec.second_use.defined()) tied += spec.tensor.numel();
      parameters.allocated += bytes_of(spec.tensor);
    }
    const int64_t tied_here = stage.partitions_parameters()  ? tied / ranks
                              : stage.partitions_gradients() ? std::min(tied, numel / ranks)
                                                             : tied;
    copies.closed_form += static_cast<int64_t>(group.sums.element_size()) * tied_here;
    const bool exact = group.sums.scalar_type() == torch::kLong;
    const auto width = static_cast<int64_t>(group.params[0].tensor.element_size());
    parameters.allocated += bytes_of(group.weights);
    const auto states = static_cast<int64_t>(group.states.size());
    const int64_t state_width = (width == 2 ? 4 : 0) + 4 * states;
    if (!params_on_disk) parameters.closed_form += width * numel / parameter_parts;
    gradients.allocated += bytes_of(group.sums);
    gradients.closed_form += (exact ? 8 : 4) * numel / gradient_parts;
    if (exact) {
      gradients.allocated += bytes_of(group.gradient);
      gradients.closed_form += 4 * numel / ranks;
    }
    state.allocated += bytes_of(group.master);
    for (const StateTensor& own : group.states) state.allocated += bytes_of(own);
    for (const auto& whole : group.whole_states)
      for (const torch::Tensor& own : whole) {
        state.allocated += bytes_of(own);
        state.closed_form += 4 * own.numel();
      }
    if (!state_on_disk) state.closed_form += state_width * numel / ranks;
    const int64_t halves = group.layout.partition_numel() > Streamer::kBlock ? 2 : 1,
                  streams = (params_on_disk ? width : 0) + (state_on_disk ? state_width : 0);
    buffers.closed_form = std::max(buffers.closed_form, halves * Streamer::kBlock * streams);
  }
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
