#pragma once

#include "framework/comm/tensor_parallel.h"

namespace anymesh {

// The two conjugate operators around a tensor-parallel block (f and g of Megatron-LM,
// arXiv:1909.08053, section 3; with sequence parallelism arXiv:2205.05198, section 4.2.2):
//
//                          forward                      backward
//   enter                  identity                     all-reduce
//   leave                  all-reduce                   identity
//   enter, sequence cut    all-gather [b, s, h]         reduce-scatter [b, s/t, h]
//   leave, sequence cut    reduce-scatter [b, s/t, h]   all-gather [b, s, h]
//
//   y = leave(row(gelu(column(enter(x)))))    one sum in each direction for two matrices
torch::Tensor enter_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp);
// linear(enter(x)), whose backward runs both beside the weight's gradient: the sum of dx, and where
// the sequence is cut, another gather of x, of which only this rank's part is kept
// (arXiv:2205.05198, section 4.2.2).
torch::Tensor enter_linear(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias, const TensorParallel& tp);
torch::Tensor leave_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp);

// Between the two: the sum of all ranks' x, of which each rank goes on with its own part. Both
// directions are an all-reduce.
torch::Tensor sum_inside_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp);

// With --same-bits, sums over ranks are the upper levels of a binary tree, in fp32:
//
//   tree_sum         parts [2^i, ..] -> [..], in place
//   tree_leave       x [b, s, h] in fp32 -> the ranks' sum, rounded; of this rank's positions, if
//                    tp cuts the sequence
//   gather_sequence  this rank's part of the sequence -> [b, s, h]
//
// They have no gradients.
torch::Tensor tree_sum(const torch::Tensor& parts);
torch::Tensor tree_leave(const torch::Tensor& x, torch::Dtype dtype, const TensorParallel& tp);
torch::Tensor gather_sequence(const torch::Tensor& x, const TensorParallel& tp);

}  // namespace anymesh
