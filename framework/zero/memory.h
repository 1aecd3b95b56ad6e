#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace anymesh {

// Makes this process keep freed tensor memory for later tensors. Each step allocates and frees the
// same blocks as the one before, and otherwise the kernel takes large blocks back and hands out
// zeroed pages each time. At GPT-2's 50304 words and 512 tokens that is a quarter of a step. Also
// asks for huge pages, where the system grants them on request: with pages of 4 KiB a step of
// hidden 384 takes 4 to 5 % longer. Call this before the first tensor is made.
void keep_freed_memory();

// Counts the bytes in use and their peak.
struct ByteGauge {
  int64_t now = 0, peak = 0;
  void add(int64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
  void add(const torch::Tensor& t) { add(static_cast<int64_t>(t.nbytes())); }
  void remove(const torch::Tensor& t) { add(-static_cast<int64_t>(t.nbytes())); }
};

// Counts the bytes of a device's memory that LibTorch hands out to this thread, and to those that
// run its backward, while the object lives, less the bytes freed again. Covers tensors of every
// kind, including temporary ones.
class AllocationGauge {
 public:
  explicit AllocationGauge(c10::Device device = c10::kCPU);
  const ByteGauge& bytes() const { return *bytes_; }

 private:
  std::shared_ptr<ByteGauge> bytes_ = std::make_shared<ByteGauge>();
  c10::DebugInfoGuard guard_;
};

}  // namespace anymesh
