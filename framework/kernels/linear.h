#pragma once

#include <torch/types.h>

namespace anymesh {

// Returns x W^T + b for x [..., k], W [n, k] and b [n] or undefined -> [..., n].
//
// On a CPU with units for bf16 (AMX, AVX512-BF16), bf16 runs in blocks of LibTorch's brgemm. Sums
// are kept in fp32 and rounded once, with the bias, and the number of threads does not change a
// bit. A call takes 5 us, where at::linear needs 20 before it multiplies. On an x86 CPU without
// instructions for bf16 or fp16, LibTorch works element by element, so this calls widened_linear().
// All other cases, including sides that are not multiples of 16, use at::linear. On a GPU its
// products are LibTorch's too, but a weight's sink gets the gradient right from the product.
torch::Tensor blocked_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});

// The same for bf16 or fp16, by LibTorch's products in fp32, rounded once.
torch::Tensor widened_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});

}  // namespace anymesh
