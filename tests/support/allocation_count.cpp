#include "tests/support/allocation_count.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

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
