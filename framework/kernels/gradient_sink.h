#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/types.h>

#include <functional>
#include <vector>

namespace anymesh {

// Takes over the gradient of a parameter where a kernel makes it, in a wider dtype than the
// parameter's and without a tensor of its own. It is the hook of a leaf, which is called all the
// same, without a gradient if it took it over.
struct GradientSink : torch::autograd::PostAccumulateGradHook {
  // Takes a gradient that is made.
  virtual void add(const torch::Tensor& gradient) = 0;
  // Adds dy^T x, for dy [.., n] and x [.., k]. Returns false if it needs a gradient that is made.
  virtual bool add_product(const torch::Tensor& dy, const torch::Tensor& x) = 0;
  // Adds dW [E, n, k], where dW[e] is dy^T x of the next counts[e] rows of dy [r, n] and x [r, k].
  // Returns false likewise.
  virtual bool add_groups(const torch::Tensor& /*dy*/, const torch::Tensor& /*x*/,
                          const std::vector<int64_t>& /*counts*/) {
    return false;
  }
  // Adds the sum over dim 0 of parts [p, n]. Returns false likewise.
  virtual bool add_parts(const torch::Tensor& parts) = 0;
  // Whether gradients are made later, and if so keeps `work`, which makes this one (schedule.h).
  virtual bool puts_off() const { return false; }
  virtual void put_off(std::function<void()> /*work*/) {}
  // The rows whose gradients a part may sum, where it must not depend on the rows that are here; 0:
  // any.
  virtual int64_t rows_of_part() const { return 0; }
};

// Returns the leaf's sink, or null.
GradientSink* sink_of(const torch::Tensor& leaf);

// Returns what the leaf's sink says, or 0.
int64_t rows_of_part(const torch::Tensor& leaf);

// Whether the leaf's sink puts gradients off.
bool puts_off(const torch::Tensor& leaf);

// Gives dy^T x() to the leaf's sink, for dy [.., n] and x() [.., k], and returns an undefined
// tensor. Without a sink it returns product(dy, x()), as the gradient for autograd.
torch::Tensor gradient_of_product(const torch::Tensor& dy, const std::function<torch::Tensor()>& x,
                                  const torch::Tensor& leaf,
                                  torch::Tensor (*product)(const torch::Tensor&,
                                                           const torch::Tensor&));

// The same of groups of rows (GradientSink::add_groups).
torch::Tensor gradient_of_groups(const torch::Tensor& dy, const torch::Tensor& x,
                                 const std::vector<int64_t>& counts, const torch::Tensor& leaf,
                                 torch::Tensor (*product)(const torch::Tensor&,
                                                          const torch::Tensor&,
                                                          const std::vector<int64_t>&));

// Calls work(e, first, rows) for each group of rows.
template <class Work>
void for_groups(const std::vector<int64_t>& counts, const Work& work) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    work(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

// Gives the sum of parts [p, n] to the leaf's sink and returns an undefined tensor, or returns the
// sum in the leaf's dtype, as the gradient for autograd.
torch::Tensor gradient_of_parts(const torch::Tensor& parts, const torch::Tensor& leaf);

}  // namespace anymesh
