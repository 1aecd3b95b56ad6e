// Replaces this folder's other sources in a build without CUDA.
#include "framework/kernels/cuda/kernels.h"

namespace anymesh {
namespace {

constexpr const char* kAbsent = "this build has no CUDA (cmake --preset cuda makes one that has)";

}  // namespace

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
