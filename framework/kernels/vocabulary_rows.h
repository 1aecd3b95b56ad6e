#pragma once

#include <torch/types.h>

namespace anymesh {

// The softmax over a vocabulary for a cross entropy, without an fp32 tensor of the logits' size.
// The logits [n, v] are contiguous, and has_kernels() (dispatch.h) accepts them. Only the first
// `real` columns count.

// The greatest logit of each row, and the sum of exponentials relative to it: [n] each, in fp32;
// -inf and 0 if there are no columns.
struct RowSums {
  torch::Tensor maxima, sums;
};
// With `maxima`, the sums are relative to these, and the rows of a CPU may lie apart.
RowSums row_sums(const torch::Tensor& logits, int64_t real, const torch::Tensor& maxima = {});

// Returns [n, v], like the logits: scale * (exp(logit - log_sum) - [column is the target]), zeros
// from `real` on. log_sums and scales are [n] in fp32. targets are [n] in int64, negative if the
// row's target is not among these columns.
torch::Tensor logits_gradient(const torch::Tensor& logits, int64_t real,
                              const torch::Tensor& log_sums, const torch::Tensor& targets,
                              const torch::Tensor& scales);

}  // namespace anymesh
