#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/types.h>

namespace anymesh {

// Takes over the gradient of a parameter where a kernel makes it, in a wider dtype than the
// parameter's and without a tensor of its own. It is the hook of a leaf, which is called all the
// same, without a gradient if it took it over.
struct GradientSink : torch::autograd::PostAccumulateGradHook {
  // Adds dy^T x, for dy [.., n] and x [.., k]. Returns false if it leaves that to autograd.
  virtual bool add_product(const torch::Tensor& dy, const torch::Tensor& x) = 0;
  // Adds the sum over dim 0 of parts [p, n]. Returns false likewise.
  virtual bool add_parts(const torch::Tensor& parts) = 0;
  // The rows whose gradients a part may sum, where it must not depend on the rows that are here; 0:
  // any.
  virtual int64_t rows_of_part() const { return 0; }
};

// Returns the leaf's sink, or null.
GradientSink* sink_of(const torch::Tensor& leaf);

// Returns what the leaf's sink says, or 0.
int64_t rows_of_part(const torch::Tensor& leaf);

// Gives dy^T x to the leaf's sink, for dy [.., n] and x [.., k], and returns an undefined tensor.
// Without a sink it returns product(dy, x), as the gradient for autograd.
torch::Tensor gradient_of_product(const torch::Tensor& dy, const torch::Tensor& x,
                                  const torch::Tensor& leaf,
                                  torch::Tensor (*product)(const torch::Tensor&,
                                                           const torch::Tensor&));

// Gives the sum of parts [p, n] to the leaf's sink and returns an undefined tensor, or returns the
// sum in the leaf's dtype, as the gradient for autograd.
torch::Tensor gradient_of_parts(const torch::Tensor& parts, const torch::Tensor& leaf);

}  // namespace anymesh
