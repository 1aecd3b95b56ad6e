#pragma once

#include <torch/types.h>

namespace anymesh {

// The MLP's non-linearities as one sweep in each direction; what is kept for backward is their
// input. What has_kernels() (dispatch.h) takes them, all else LibTorch's operators.

// GELU with tanh: x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv:1606.08415). On a GPU
// it is LibTorch's, which is a sweep too.
torch::Tensor gelu_tanh(const torch::Tensor& x);

// silu(gate) * up, with x [..., 2f] = [gate, up] -> [..., f] (arXiv:2002.05202).
torch::Tensor swiglu(const torch::Tensor& x);

}  // namespace anymesh
