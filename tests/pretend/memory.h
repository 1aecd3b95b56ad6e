#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "tests/pretend/order.h"

namespace anymesh::pretend {

// The device's memory: pages without access, but while an operator runs on them.
class Pages {
 public:
  void* allocate(size_t size);
  int64_t free(void* at);  // returns the bytes
  void open(const void* at) { change(at, 1); }
  void close(const void* at) { change(at, -1); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Block {
    size_t size, pages;  // asked for, and given
    int open = 0;        // operators that run on it
  };
  void change(const void* at, int by);

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  std::atomic<int64_t> bytes_ = 0;
};
Pages& pages();

// Memory of the host that the device copies from and to. Until a wait shows that a copy is done,
// its pages cannot be read, or only be read if the copy reads too.
class Pinned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override;

  bool holds(const void* at);
  // A copy is about to run, and then is under way in a stream.
  void open(const void* at, size_t size);
  void close(const void* at, size_t size, bool written, const Order::Clock& copied);
  void settle();  // the host has waited

 private:
  struct Copy {
    const void* at;
    size_t size;
    Order::Clock done;
  };
  static void release(void* at);

  std::mutex mutex_;
  std::map<void*, size_t> held_;
  std::vector<Copy> under_way_;
};
Pinned& pinned();

}  // namespace anymesh::pretend
