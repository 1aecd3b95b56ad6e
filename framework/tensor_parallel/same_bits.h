#pragma once

#include "framework/comm/tensor_parallel.h"

namespace anymesh {

// The linear layers of layers.h with --same-bits: results and gradients have the same bits at any
// tp that divides tp.blocks, with and without sequence parallelism, on any number of threads.
// Shapes are those of layers.h; `parts` is ColumnParallelLinear's sub_params.
//
// Where tp cuts an inner dimension, it lies in tp.blocks blocks. A rank sums its own blocks
// (kernels/fixed_order.h), and the ranks' sums are the upper levels of the same tree
// (mappings.h).
torch::Tensor same_bits_column(const torch::Tensor& x, const torch::Tensor& weight,
                               const torch::Tensor& bias, int64_t parts, const TensorParallel& tp);
torch::Tensor same_bits_row(const torch::Tensor& x, const torch::Tensor& weight,
                            const torch::Tensor& bias, const TensorParallel& tp);

}  // namespace anymesh
