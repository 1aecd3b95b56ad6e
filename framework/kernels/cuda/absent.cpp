// Replaces this folder's other sources in a build without CUDA.
#include "framework/kernels/cuda/absent.h"

#include "framework/kernels/cuda/kernels.h"

namespace anymesh {

void cuda_adamw(const std::vector<AdamwTensors>&, const AdamwCoefficients<double>&) {
  TORCH_CHECK(false, kNoCuda);
}
double cuda_sum_of_squares(const std::vector<torch::Tensor>&) { TORCH_CHECK(false, kNoCuda); }
void cuda_dropout(const torch::Tensor&, const torch::Tensor&, const DropoutKey&) {
  TORCH_CHECK(false, kNoCuda);
}
void cuda_swiglu(const torch::Tensor&, const torch::Tensor&) { TORCH_CHECK(false, kNoCuda); }
void cuda_swiglu_backward(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kNoCuda);
}
void cuda_norm(const NormForward&) { TORCH_CHECK(false, kNoCuda); }
torch::Tensor cuda_norm_backward(const NormBackward&) { TORCH_CHECK(false, kNoCuda); }
torch::Tensor cuda_column_sums(const torch::Tensor&) { TORCH_CHECK(false, kNoCuda); }
bool cuda_multiplies_groups() { return false; }
void cuda_split_heads(const HeadMoves&) { TORCH_CHECK(false, kNoCuda); }
void cuda_join_heads(const HeadMoves&) { TORCH_CHECK(false, kNoCuda); }
void cuda_row_sums(const torch::Tensor&, int64_t, const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kNoCuda);
}
void cuda_logits_gradient(const torch::Tensor&, int64_t, const torch::Tensor&, const torch::Tensor&,
                          const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK(false, kNoCuda);
}

}  // namespace anymesh
