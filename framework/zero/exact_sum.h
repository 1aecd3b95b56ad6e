#pragma once

#include <torch/types.h>

#include <vector>

#include "framework/kernels/units.h"

namespace anymesh {

// Sums whose bits do not depend on their order (--same-bits), and so not on who adds what.
//
// A gradient of one sample, or of some of its positions, is rounded once to a grid of 2^-50 times
// the loss scale, and added as int64. The sum has more digits than fp32 above 2e-8. Addends are
// below 2^61 / (addends of a step) units, so that no sum wraps, nor two of a tied weight. One
// beyond, or not finite, is left out, and the square sum tells.
class ExactSum {
 public:
  // `rows_of_part` are the positions of a sample whose gradients a kernel may sum in fp32, where it
  // sums over positions: norms and biases (GradientSink). A sample has `parts` of them.
  ExactSum(int64_t rows_of_part, int64_t parts) : rows_of_part_(rows_of_part), parts_(parts) {}

  int64_t rows_of_part() const { return rows_of_part_; }
  // Call this before the backward of a step over `samples`, on all ranks.
  void begin(double loss_scale, int64_t samples);

  // Sets sums [n], or adds to them, x [..] in fp32, bf16 or fp16.
  void add(const torch::Tensor& x, const torch::Tensor& sums, bool replaces);
  // The same for the samples' dy^T x [n, k], of dy [b, s, n] and x [b, s, k].
  void add_product(const torch::Tensor& dy, const torch::Tensor& x, const torch::Tensor& sums,
                   bool replaces);
  // Returns x in units: int64, of the same shape; dense if x is sparse. A sample may have a part
  // for each of its positions.
  torch::Tensor units(const torch::Tensor& x);
  torch::Tensor units_of_parts(const torch::Tensor& x);
  torch::Tensor sum_of_parts(const torch::Tensor& parts);  // [p, ..] -> [..]
  // Sets a gradient in fp32 from its sums.
  void finish(const torch::Tensor& sums, const torch::Tensor& gradient) const;

  // The sum of the squares of gradients in fp32: four doubles [4] of different sizes, which add up
  // without rounding, also those of several ranks, for up to 2^32 gradients. Infinite after an
  // overflow.
  torch::Tensor square_sum(const std::vector<torch::Tensor>& gradients) const;

 private:
  void write(const torch::Tensor& x, const torch::Tensor& units, Grid grid, bool replaces);

  int64_t rows_of_part_, parts_;
  Grid whole_, part_;  // of a sample's gradient, and of a part's
  bool overflowed_ = false;
};

}  // namespace anymesh
