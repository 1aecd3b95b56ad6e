#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/types.h>

namespace anymesh {

// Takes over the gradient of a parameter where a kernel makes it, in a wider dtype than the
// parameter's and without a tensor of its own. It is the hook of a leaf, which is called all the
// same, without a gradient if it took it over.
struct GradientSink : torch::autograd::PostAccumulateGradHook {
  // Adds dy^T x, for dy [t, n] and x [t, k]. Returns false if it leaves that to autograd.
  virtual bool add_product(const torch::Tensor& dy, const torch::Tensor& x) = 0;
  // Adds the sum over dim 0 of parts [p, n]. Returns false likewise.
  virtual bool add_parts(const torch::Tensor& parts) = 0;
};

// Gives the sum of parts [p, n] to the leaf's sink and returns an undefined tensor, or returns the
// sum in the leaf's dtype, as the gradient for autograd.
torch::Tensor gradient_of_parts(const torch::Tensor& parts, const torch::Tensor& leaf);

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
