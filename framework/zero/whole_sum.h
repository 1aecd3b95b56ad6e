#pragma once

#include <torch/types.h>

#include <vector>

namespace anymesh {

// A sparse gradient [v, h] with each row once. A row's occurrences are added in fp32 at least: in
// bf16 those of a frequent token would soon be too small beside their sum.
torch::Tensor coalesced(const torch::Tensor& gradient);

// Stages 0 and 1: a leaf's gradients, summed over the micro-batches of a step; the first takes the
// place of the last step's. Those of a table that is only looked up in are a few of its rows
// (sparse, [v, h]): the other rows stay the zeros that they are, unread and unwritten.
class WholeSum {
 public:
  // Into `sums` [n], zeros. `alone`: nobody else writes there, such as an all-reduce.
  WholeSum(torch::Tensor sums, bool alone) : sums_(std::move(sums)), alone_(alone) {}

  void add(const torch::Tensor& gradient);
  void finish();  // before `sums` is read: zeros, of what no micro-batch used
  void add_to(const torch::Tensor& whole) const;  // whole [n] += sums
  void expire() { stale_ = true; }                // the step is over

 private:
  void clear();
  void add_rows(const torch::Tensor& gradient);

  torch::Tensor sums_;
  bool alone_, stale_ = true;
  bool only_rows_ = true;            // what is not in `rows_` is zero
  int64_t width_ = 1;                // of a row
  std::vector<torch::Tensor> rows_;  // one for each micro-batch
};

}  // namespace anymesh
