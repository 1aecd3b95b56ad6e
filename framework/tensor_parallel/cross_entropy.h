#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// Returns -log softmax(logits)[label] per token, over a vocabulary that tp cuts:
//
//   logits [b, s, v/t], labels [b, s]  ->  loss [b, s] in fp32 (float64 for float64 logits)
//
// Columns at or past `vocab_size` are padding: they take no part in the softmax and get no
// gradient. This takes three small all-reduces (maximum, label's logit, sum of exponentials) and no
// gather of the logits.
torch::Tensor vocab_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels,
                                           int64_t vocab_size, const CommPtr& tp);

}  // namespace anymesh
