#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <memory>

namespace anymesh {

// A point in a stream's work.
class CudaEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~CudaEvent() { C10_CUDA_CHECK_WARN(cudaEventDestroy(event_)); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // Makes the work put into `stream` from now on wait for this event.
  void hold_back(cudaStream_t stream) const { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_)); }
  cudaEvent_t get() const { return event_; }
  void wait() const { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  bool is_done() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) C10_CUDA_CHECK(status);
    return status == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

using CudaEventPtr = std::shared_ptr<const CudaEvent>;

}  // namespace anymesh
