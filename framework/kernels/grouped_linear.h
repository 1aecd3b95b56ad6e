#pragma once

#include <torch/types.h>

#include <vector>

namespace anymesh {

// Groups of consecutive rows, such as those of experts.
struct RowGroups {
  std::vector<int64_t> counts;  // rows of each; some may have none
  torch::Tensor ends;  // where each ends, int32 [E] on the rows' device; only a GPU needs them
};

// blocked_linear() for groups of rows of x [r, k] with a weight each. Group e is multiplied by
// weights[.][e]. Several weights [E, n, k] put their results side by side:
// -> [r, n * weights.size()]. The weight of a group without rows has the gradient zero.
//
// On a Hopper or Blackwell GPU bf16 goes by LibTorch's _grouped_mm, one launch a weight. On any GPU
// the weights' sinks get gradients from the product of each group, in the sums' dtype.
torch::Tensor grouped_linear(const torch::Tensor& x, const std::vector<torch::Tensor>& weights,
                             const RowGroups& groups);

// The same by _grouped_mm, on any device. In bf16 or fp16, n and k are multiples of 8.
torch::Tensor grouped_linear_at_once(const torch::Tensor& x,
                                     const std::vector<torch::Tensor>& weights,
                                     const RowGroups& groups);

}  // namespace anymesh
