#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace anymesh {

// Has this process keep the memory that its tensors free, for those to come. A step allocates and
// frees what the step before it did, and each time the kernel takes large blocks back and hands out
// zeroed pages instead: at GPT-2's 50304 words and 512 tokens that is a quarter of a step. And asks
// for huge pages, where the system grants them to who asks: with pages of 4 KiB a step of hidden
// 384 takes 4 to 5 % longer. To be called before the first tensor is made.
void keep_freed_memory();

// Bytes that come and go.
struct ByteGauge {
  int64_t now = 0, peak = 0;
  void add(int64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};

// What LibTorch's allocators hand out to this thread while the object lives: tensors of every kind,
// temporary ones too. Counts what was allocated since, less what of it was freed.
class AllocationGauge {
 public:
  AllocationGauge();
  const ByteGauge& bytes() const { return *bytes_; }

 private:
  std::shared_ptr<ByteGauge> bytes_ = std::make_shared<ByteGauge>();
  c10::DebugInfoGuard guard_;
};

}  // namespace anymesh
