#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// The two conjugate operators of tensor parallelism (Megatron-LM, arXiv:1909.08053, section 3):
//
//   f = copy_to_tensor_parallel       forward: identity      backward: all-reduce over tp
//   g = reduce_from_tensor_parallel   forward: all-reduce    backward: identity
//
//   y = g(row(gelu(column(f(x)))))    one all-reduce in each direction for two matrices
torch::Tensor copy_to_tensor_parallel(const torch::Tensor& x, const CommPtr& tp);
torch::Tensor reduce_from_tensor_parallel(const torch::Tensor& x, const CommPtr& tp);

}  // namespace anymesh
