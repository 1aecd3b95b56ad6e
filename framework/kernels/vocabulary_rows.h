#pragma once

#include <torch/types.h>

namespace anymesh {

// The softmax over a vocabulary without a tensor of its size in fp32: what a cross entropy needs of
// rows of logits [n, v], contiguous, that has_kernels() (dispatch.h). Only the first `real` columns
// count.

// Of each row the greatest, and the sum of exponentials relative to it: [n] each, in fp32; -inf and
// 0 of no columns.
struct RowSums {
  torch::Tensor maxima, sums;
};
RowSums row_sums(const torch::Tensor& logits, int64_t real);

// [n, v], like the logits: scale * (exp(logit - log_sum) - [column is the target]), zeros from
// `real` on. log_sums and scales are [n] in fp32, targets [n] in int64, negative where the row's is
// none of these columns.
torch::Tensor logits_gradient(const torch::Tensor& logits, int64_t real,
                              const torch::Tensor& log_sums, const torch::Tensor& targets,
                              const torch::Tensor& scales);

}  // namespace anymesh
