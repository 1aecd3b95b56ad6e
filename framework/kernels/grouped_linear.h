#pragma once

#include <torch/types.h>

#include <vector>

namespace anymesh {

// blocked_linear() for groups of rows with a weight each. The first counts[0] rows of x [r, k] are
// multiplied by weights[.][0], and so on. Several weights [E, n, k] put their results side by side:
// -> [r, n * weights.size()]. A group may have no rows; its weight's gradient is zero then.
torch::Tensor grouped_linear(const torch::Tensor& x, const std::vector<torch::Tensor>& weights,
                             const std::vector<int64_t>& counts);

}  // namespace anymesh
