#include "framework/zero/memory.h"

#include <c10/core/Allocator.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace anymesh {
namespace {

class Reporter final : public c10::MemoryReportingInfoBase {
 public:
  Reporter(std::shared_ptr<ByteGauge> bytes, c10::DeviceType device)
      : bytes_(std::move(bytes)), device_(device) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device where) override {
    if (where.type() == device_) bytes_->add(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::shared_ptr<ByteGauge> bytes_;
  c10::DeviceType device_;
};

}  // namespace

void keep_freed_memory() {
#if defined(__GLIBC__) && !defined(ANYMESH_SANITIZE)
  mallopt(M_MMAP_MAX, 0);         // all from the heap,
  mallopt(M_TRIM_THRESHOLD, -1);  // which never shrinks
  // Reserves addresses only: a page is taken when it is first touched.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)),
             size = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2 * page;
  if (void* heap = std::malloc(size)) {
    madvise(static_cast<char*>(heap) + page - reinterpret_cast<uintptr_t>(heap) % page, size - page,
            MADV_HUGEPAGE);
    std::free(heap);
  }
#endif
}

AllocationGauge::AllocationGauge(c10::Device device)
    : guard_(c10::DebugInfoKind::PROFILER_STATE,
             std::make_shared<Reporter>(bytes_, device.type())) {}

}  // namespace anymesh
