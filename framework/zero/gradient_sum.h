#pragma once

#include <torch/types.h>

#include <vector>

#include "framework/zero/exact_sum.h"

namespace anymesh {

// Returns a sparse gradient [v, h] with each row once. A row's occurrences are added in fp32 at
// least: in bf16 a frequent token's terms would soon be too small beside their sum.
torch::Tensor coalesced(const torch::Tensor& gradient);
// Returns it with every row. On a device this waits for nothing.
torch::Tensor dense(const torch::Tensor& gradient);

// Stages 0 and 1: sums a leaf's gradients over the micro-batches of a step. The first gradient
// replaces the last step's sum. A table that is only looked up has sparse gradients [v, h] with a
// few rows; its other rows stay zero and are neither read nor written.
class GradientSum {
 public:
  // Sums into `sums` [n], which holds zeros. `alone` says that nothing else, such as an all-reduce,
  // writes there.
  // With `exact`, sums are in its units.
  GradientSum(torch::Tensor sums, bool alone, ExactSum* exact = nullptr)
      : sums_(std::move(sums)), alone_(alone), exact_(exact) {}

  void add(const torch::Tensor& gradient);
  // Adds dy^T x, or the sum over dim 0 of parts, in the dtype of `sums`. Returns false if it did
  // not, so that the gradient comes by add(): on a CPU without `exact`, where every stage rounds a
  // micro-batch's gradient alike.
  bool add_product(const torch::Tensor& dy, const torch::Tensor& x);
  bool add_groups(const torch::Tensor& dy, const torch::Tensor& x,
                  const std::vector<int64_t>& counts);
  bool add_parts(const torch::Tensor& parts);
  void finish();  // before `sums` is read; sets it to zeros if no micro-batch used the leaf
  void add_to(const torch::Tensor& whole) const;  // whole [n] += sums
  void expire() { stale_ = true; }                // the step is over

 private:
  void clear();
  void add_rows(const torch::Tensor& gradient);

  torch::Tensor sums_;
  bool alone_, stale_ = true;
  ExactSum* exact_;
  bool only_rows_ = true;            // rows not in `rows_` are zero
  int64_t width_ = 1;                // elements of a row
  std::vector<torch::Tensor> rows_;  // one for each micro-batch
};

}  // namespace anymesh
