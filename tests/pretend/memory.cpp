#include "tests/pretend/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace anymesh::pretend {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t size) { return std::max(kPage, (size + kPage - 1) / kPage * kPage); }

void* map_pages(size_t size, int rights) {
  void* at = mmap(nullptr, whole_pages(size), rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(at != MAP_FAILED, "pretend device: no memory");
  return at;
}

void protect(const void* at, size_t size, int rights) {
  const auto begin = reinterpret_cast<uintptr_t>(at) / kPage * kPage,
             end = (reinterpret_cast<uintptr_t>(at) + size + kPage - 1) / kPage * kPage;
  mprotect(reinterpret_cast<void*>(begin), end - begin, rights);
}

}  // namespace

void* Pages::allocate(size_t size) {
  void* at = map_pages(size, PROT_NONE);
  const std::lock_guard lock(mutex_);
  blocks_[at] = {size, whole_pages(size)};
  bytes_ += static_cast<int64_t>(size);
  return at;
}

int64_t Pages::free(void* at) {
  const std::lock_guard lock(mutex_);
  const Block block = blocks_.at(at);
  munmap(at, block.pages);
  blocks_.erase(at);
  bytes_ -= static_cast<int64_t>(block.size);
  return static_cast<int64_t>(block.size);
}

void Pages::change(const void* at, int by) {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(const_cast<void*>(at));
  TORCH_INTERNAL_ASSERT(block != blocks_.begin(), "not the device's memory");
  --block;
  const bool was_open = block->second.open > 0;
  block->second.open += by;
  const bool is_open = block->second.open > 0;
  if (was_open != is_open)
    mprotect(block->first, block->second.pages, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Pages& pages() {
  static Pages pages;
  return pages;
}

c10::DataPtr Pinned::allocate(size_t size) {
  void* at = map_pages(size, PROT_READ | PROT_WRITE);
  order().allocated(at, std::max<size_t>(size, 1), Order::kHost);
  const std::lock_guard lock(mutex_);
  held_[at] = size;
  return {at, at, &release, c10::kCPU};
}

void Pinned::release(void* at) {
  order().freed(at);
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex_);
  const size_t size = all.held_.at(at);
  std::erase_if(all.under_way_, [&](const Copy& copy) {
    return copy.at >= at && copy.at < static_cast<char*>(at) + size;
  });
  all.held_.erase(at);
  munmap(at, whole_pages(size));
}

void Pinned::copy_data(void* to, const void* from, std::size_t size) const {
  std::memcpy(to, from, size);
}

bool Pinned::holds(const void* at) {
  const std::lock_guard lock(mutex_);
  auto block = held_.upper_bound(const_cast<void*>(at));
  if (block == held_.begin()) return false;
  --block;
  return static_cast<const char*>(at) < static_cast<char*>(block->first) + block->second;
}

void Pinned::open(const void* at, size_t size) { protect(at, size, PROT_READ | PROT_WRITE); }

void Pinned::close(const void* at, size_t size, bool written, const Order::Clock& copied) {
  protect(at, size, written ? PROT_NONE : PROT_READ);
  const std::lock_guard lock(mutex_);
  under_way_.push_back({at, size, copied});
}

void Pinned::settle() {
  const std::lock_guard lock(mutex_);
  std::erase_if(under_way_, [](const Copy& copy) {
    if (!order().host_knows(copy.done)) return false;
    protect(copy.at, copy.size, PROT_READ | PROT_WRITE);
    return true;
  });
}

Pinned& pinned() {
  static Pinned pinned;
  return pinned;
}

}  // namespace anymesh::pretend
