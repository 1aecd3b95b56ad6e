// The memory that a rank keeps between steps, by a closed form. There are n parameters on the rank
// (its stage, its tp slice), w bytes a weight (2 in half precision, else 4), d ranks that hold the
// same parameters (dp, or edp for experts), and the stage's partitions:
//
//                     stage 0      1           2           3
//   parameters        w n          w n         w n         w n / d
//   gradients         4 n          4 n         4 n / d     4 n / d
//   optimizer state   k n          k n / d     k n / d     k n / d      k = 4 for each state, and 4
//                                                                      for a half's master
//   tied copies       4 t          4 t         (4 t)       4 t / d      t: a tied weight that one
//                                                                       stage uses twice
// (At stage 2 a tied weight lies in one partition as far as it fits: at most 4 n / d.)
//
// With --same-bits, sums of gradients have 8 bytes an element, also those of tied copies, and the
// optimizer's partition has 4 more.
//
// Parameters or optimizer state offloaded to disk (--offload-optimizer, --offload-param with nvme)
// count as 0. A further row has the buffers that they stream through: w, k or w + k times 2 * 2^20,
// whatever n is (half of it for a partition of at most 2^20).
//
// The closed form leaves out padding, at most a few elements a parameter.
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/zero/stage.h"

namespace anymesh {

inline constexpr int64_t kStreamBlock = int64_t{1} << 20;  // elements that stream to disk at a time
inline constexpr int64_t kGradientBucket = int64_t{1} << 22;  // elements of a gradient bucket
inline constexpr int64_t kReducedAtOnce =
    8 * kGradientBucket;  // elements of sums that are reduced at once

// Elements of each partition that are gathered at a time. All ranks' make at most eight buckets.
constexpr int64_t gathered_at_once(int64_t ranks) {
  return std::clamp(8 * kGradientBucket / ranks, int64_t{1}, kGradientBucket);
}

// Parameters that are optimized alike and that the same ranks hold.
struct KeptGroup {
  int64_t numel = 0, tied = 0;    // n and t
  int64_t ranks = 1;              // d
  int64_t width = 4, states = 2;  // w, and states of the optimizer
  bool exact = false;             // --same-bits
  bool params_on_disk = false, state_on_disk = false;
  int64_t state_width() const { return (width == 2 ? 4 : 0) + 4 * states; }  // k
};

// In int64_t, or in double for models of any size.
template <class Number>
struct KeptNumbers {
  Number parameters = 0, gradients = 0, state = 0, copies = 0, buffers = 0;
  Number sum() const { return parameters + gradients + state + copies + buffers; }
};
using KeptBytes = KeptNumbers<int64_t>;

// Adds a group's memory. One buffer serves all groups.
template <class Number>
void add_kept_bytes(const KeptGroup& g, ZeroStage stage, KeptNumbers<Number>& kept) {
  const auto numel = static_cast<Number>(g.numel), tied = static_cast<Number>(g.tied);
  const auto of = [](Number n, int64_t parts) { return n / static_cast<Number>(parts); };
  const auto times = [](int64_t width, Number n) { return static_cast<Number>(width) * n; };
  const Number part = of(numel, g.ranks);
  const int64_t sums = g.exact ? 8 : 4, of_states = stage.partitions_optimizer() ? g.ranks : 1,
                of_gradients = stage.partitions_gradients() ? g.ranks : 1,
                of_weights = stage.partitions_parameters() ? g.ranks : 1;
  if (!g.params_on_disk) kept.parameters += of(times(g.width, numel), of_weights);
  kept.gradients += of(times(sums, numel), of_gradients);
  if (g.exact) kept.gradients += of(times(4, numel), of_states);
  if (!g.state_on_disk) kept.state += of(times(g.state_width(), numel), of_states);
  kept.copies += times(sums, stage.partitions_parameters()  ? of(tied, g.ranks)
                             : stage.partitions_gradients() ? std::min(tied, part)
                                                            : tied);
  const int64_t streams =
      (g.params_on_disk ? g.width : 0) + (g.state_on_disk ? g.state_width() : 0);
  const bool two = part > static_cast<Number>(kStreamBlock);
  kept.buffers =
      std::max(kept.buffers, static_cast<Number>((two ? 2 : 1) * kStreamBlock * streams));
}

}  // namespace anymesh
