// Counts the bytes that a test program allocates, in all threads. Include it in one source, because
// it replaces operator new and delete.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace anymesh {

inline std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

// The most bytes live at once since the start, beyond those live at the start.
class PeakAllocation {
 public:
  PeakAllocation() : start_(live_bytes) { peak_bytes = start_; }
  int64_t bytes() const { return peak_bytes - start_; }

 private:
  int64_t start_;
};

}  // namespace anymesh

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  const int64_t live = anymesh::live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (live > anymesh::peak_bytes) anymesh::peak_bytes = live;
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory) anymesh::live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
