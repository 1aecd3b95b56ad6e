#pragma once

#include "framework/comm/tensor_parallel.h"

namespace anymesh {

// Returns -log softmax(logits)[label] per token, over a vocabulary that tp cuts:
//
//   logits [b, s, v/t], labels [b, s]  ->  loss [b, s] in fp32 (float64 for float64 logits)
//
// Columns at or past `vocab_size` are padding: they take no part in the softmax and get no
// gradient. This takes three small all-reduces (maximum, label's logit, sum of exponentials) and no
// gather of the logits. With --same-bits, sums of blocks of the vocabulary are gathered in place of
// the last, and added as a tree.
torch::Tensor vocab_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels,
                                           int64_t vocab_size, const TensorParallel& tp);

}  // namespace anymesh
