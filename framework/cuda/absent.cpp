// Replaces this folder's other sources in a build without CUDA.
#include "framework/cuda/cuda.h"

namespace anymesh {
namespace {

constexpr const char* kAbsent = "this build has no CUDA (cmake --preset cuda makes one that has)";

}  // namespace

CudaDevices cuda_devices() { return {0, kAbsent}; }
CudaDevice cuda_device(int) { TORCH_CHECK(false, kAbsent); }
void use_cuda_device(int) { TORCH_CHECK(false, kAbsent); }
CommPtr nccl_communicator(CommPtr, std::chrono::seconds) { TORCH_CHECK(false, kAbsent); }
CommPtr staged_communicator(CommPtr) { TORCH_CHECK(false, kAbsent); }
HostReader host_reader(const torch::Tensor&) { TORCH_CHECK(false, kAbsent); }

}  // namespace anymesh
