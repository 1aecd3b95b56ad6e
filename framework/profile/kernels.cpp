#include "framework/profile/kernels.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <set>

namespace anymesh {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

KernelRecorder::KernelRecorder(c10::Device device) : device_(device) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities{device.is_cuda() ? ActivityType::CUDA
                                                           : ActivityType::CPU};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

KernelRecorder::~KernelRecorder() {
  if (!stopped_) kineto::disableProfiler();
}

std::vector<Span> KernelRecorder::stop() {
  if (!device_.is_cpu())
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  stopped_ = true;
  const auto result = kineto::disableProfiler();
  const auto origin = static_cast<int64_t>(result->trace_start_ns());
  std::vector<Span> spans;
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() != device_.type()) continue;
    spans.push_back({.name = event.name(),
                     .kernel = true,
                     .begin = static_cast<int64_t>(event.startNs()) - origin,
                     .end = static_cast<int64_t>(event.endNs()) - origin});
  }
  std::ranges::stable_sort(spans, {}, &Span::begin);
  return spans;
}

}  // namespace anymesh
