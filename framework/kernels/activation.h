#pragma once

#include <torch/types.h>

namespace anymesh {

// The MLP's non-linearities, as one sweep in each direction; only their input is kept for backward.
// Tensors that has_kernels() (dispatch.h) accepts use these sweeps, and all others use LibTorch's
// operators.

// GELU with tanh: x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv:1606.08415). On a GPU
// this is LibTorch's operator, which is one sweep too.
torch::Tensor gelu_tanh(const torch::Tensor& x);

// silu(gate) * up, with x [..., 2f] = [gate, up] -> [..., f] (arXiv:2002.05202).
torch::Tensor swiglu(const torch::Tensor& x);

// gelu_tanh(gate) * up, of the same x. It is two sweeps.
torch::Tensor geglu(const torch::Tensor& x);

}  // namespace anymesh
