#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "framework/profile/profiler.h"

namespace anymesh {

// Records what a device does, by LibTorch's Kineto: the kernels of a GPU, whichever thread starts
// them. On the CPU, as tests have it, it records the operators instead.
class KernelRecorder {
 public:
  explicit KernelRecorder(c10::Device device);
  // A recording that nobody stopped ends here.
  ~KernelRecorder();
  KernelRecorder(const KernelRecorder&) = delete;
  KernelRecorder& operator=(const KernelRecorder&) = delete;

  // Waits for the device. Returns its spans in the order in which they began, in nanoseconds since
  // the recorder began.
  std::vector<Span> stop();

 private:
  c10::Device device_;
  bool stopped_ = false;
};

}  // namespace anymesh
