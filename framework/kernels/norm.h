#pragma once

#include <torch/types.h>

namespace anymesh {

// LayerNorm along the last dim of x [..., h], or RMSNorm (arXiv:1910.07467), which has neither mean
// nor bias. What has_kernels() (dispatch.h) is computed in fp32 in passes over rows that are in the
// cache, where on a CPU no number of threads changes a bit; all else, and on a CPU rows of no whole
// vectors, is LibTorch's.
struct NormParams {
  torch::Tensor weight, bias;  // [h]; an undefined bias: RMSNorm
  double epsilon = 1e-5;
};
torch::Tensor norm(const torch::Tensor& x, const NormParams& params);

// x + y, rounded to their dtype, and its norm. Its backward adds the gradients of both, which the
// two operators leave to another pass.
struct SumAndNorm {
  torch::Tensor sum, normed;
};
SumAndNorm added_norm(const torch::Tensor& x, const torch::Tensor& y, const NormParams& params);

}  // namespace anymesh
