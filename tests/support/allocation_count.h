// Counts the bytes that a test program allocates, in all threads. allocation_count.cpp replaces
// operator new and delete for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace anymesh {

inline std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

// A reader may allocate this much beyond the sizes that it read.
inline constexpr int64_t kAllowance = 64 << 20;

// The most bytes live at once since the start, beyond those live at the start.
class PeakAllocation {
 public:
  PeakAllocation() : start_(live_bytes) { peak_bytes = start_; }
  int64_t bytes() const { return peak_bytes - start_; }

 private:
  int64_t start_;
};

}  // namespace anymesh
