#pragma once

#include <torch/types.h>

#include <utility>

namespace anymesh {

// Moves the rows of tokens to those of their choices, K for each token, and back. `order` [t K] has
// the choice in each row, `places` [t, K] the row of each choice. They are each other's inverse. On
// a CPU each function is one sweep; elsewhere LibTorch's operators do it.

// x [t, h] -> [t K, h]: the token of the choice in each row
torch::Tensor rows_of_choices(const torch::Tensor& x, const torch::Tensor& order, int64_t chosen);

// rows [t K, h] -> [t, h]: the sum over a token's choices, in their order, each times its weight
// [t, K]. Without weights each counts once. Sums are kept in fp32 at least.
torch::Tensor sum_of_choices(const torch::Tensor& rows, const torch::Tensor& places,
                             const torch::Tensor& weights);

// Returns the gradients of sum_of_choices(rows, places, weights), whose own is dy [t, h]: of the
// rows and of the weights.
std::pair<torch::Tensor, torch::Tensor> gradients_of_sum(const torch::Tensor& dy,
                                                         const torch::Tensor& rows,
                                                         const torch::Tensor& places,
                                                         const torch::Tensor& weights);

}  // namespace anymesh
