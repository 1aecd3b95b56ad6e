// Replaces this folder's other sources in a build without CUDA.
#include "framework/kernels/cuda/absent.h"

#include "framework/cuda/cuda.h"

namespace anymesh {

CudaDevices cuda_devices() { return {0, kNoCuda}; }
CudaDevice cuda_device(int) { TORCH_CHECK(false, kNoCuda); }
int64_t cuda_peak_memory() { return 0; }
void use_cuda_device(int, bool) { TORCH_CHECK(false, kNoCuda); }
CommPtr nccl_communicator(CommPtr, std::chrono::seconds) { TORCH_CHECK(false, kNoCuda); }

}  // namespace anymesh
