#pragma once

#include <torch/types.h>

namespace anymesh {

// x W^T + b for x [..., k], W [n, k] and b [n] or undefined -> [..., n].
//
// In bf16, on a CPU with units for it (AMX, AVX512-BF16), by blocks of LibTorch's brgemm: sums are kept in fp32
// and rounded once, with the bias, and no number of threads changes a bit. A call takes 5 us, where
// at::linear needs 20 before it multiplies. In bf16 and fp16 on an x86 CPU that has no instruction
// for it, where LibTorch goes element by element, it is widened_linear(). All else, and sides that
// are no multiples of 16, is at::linear.
torch::Tensor blocked_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});

// The same of bf16 or fp16 by LibTorch's products in fp32, rounded once.
torch::Tensor widened_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});

}  // namespace anymesh
