#pragma once

#include <torch/types.h>

namespace anymesh {

// LayerNorm along the last dim of x [..., h], or RMSNorm (arXiv:1910.07467), which has neither mean
// nor bias. Tensors that has_kernels() (dispatch.h) accepts are computed in fp32, in passes over
// rows in the cache. On a CPU the number of threads does not change a bit. LibTorch computes all
// other tensors, and on a CPU rows that are not whole vectors.
struct NormParams {
  torch::Tensor weight, bias;  // [h]; an undefined bias means RMSNorm
  double epsilon = 1e-5;
  double offset = 0;  // added to the weight; 1: weights are learned around 0
};
torch::Tensor norm(const torch::Tensor& x, const NormParams& params);

// Returns x + y, rounded to their dtype, and its norm. The backward adds both gradients, while two
// separate operators would need another pass.
struct SumAndNorm {
  torch::Tensor sum, normed;
};
SumAndNorm added_norm(const torch::Tensor& x, const torch::Tensor& y, const NormParams& params);
// Returns x and its norm. On a GPU the backward adds both gradients here too.
SumAndNorm kept_norm(const torch::Tensor& x, const NormParams& params);

}  // namespace anymesh
