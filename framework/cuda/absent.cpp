// Replaces this folder's other sources in a build without CUDA.
#include "framework/cuda/cuda.h"
#include "framework/cuda/kernels.h"

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

void cuda_adamw(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                const torch::Tensor&, const AdamwCoefficients<double>&, const torch::Tensor&) {
  TORCH_CHECK(false, kAbsent);
}
void cuda_dropout(const torch::Tensor&, const torch::Tensor&, const DropoutKey&) {
  TORCH_CHECK(false, kAbsent);
}
void cuda_swiglu(const torch::Tensor&, const torch::Tensor&) { TORCH_CHECK(false, kAbsent); }
void cuda_swiglu_backward(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kAbsent);
}
void cuda_norm(const NormForward&) { TORCH_CHECK(false, kAbsent); }
torch::Tensor cuda_norm_backward(const NormBackward&) { TORCH_CHECK(false, kAbsent); }
void cuda_row_sums(const torch::Tensor&, int64_t, const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kAbsent);
}
void cuda_logits_gradient(const torch::Tensor&, int64_t, const torch::Tensor&, const torch::Tensor&,
                          const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kAbsent);
}

}  // namespace anymesh
