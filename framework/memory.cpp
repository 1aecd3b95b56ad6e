#include "framework/memory.h"

#include <c10/core/Allocator.h>
#include <malloc.h>

namespace anymesh {
namespace {

class Reporter final : public c10::MemoryReportingInfoBase {
 public:
  explicit Reporter(std::shared_ptr<ByteGauge> bytes) : bytes_(std::move(bytes)) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    bytes_->add(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::shared_ptr<ByteGauge> bytes_;
};

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);         // all from the heap,
  mallopt(M_TRIM_THRESHOLD, -1);  // which never shrinks
#endif
}

AllocationGauge::AllocationGauge()
    : guard_(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reporter>(bytes_)) {}

}  // namespace anymesh
