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

struct KeptBytes {
  int64_t parameters = 0, gradients = 0, state = 0, copies = 0, buffers = 0;
  int64_t sum() const { return parameters + gradients + state + copies + buffers; }
};

// Adds a group's memory. One buffer serves all groups.
inline void add_kept_bytes(const KeptGroup& g, ZeroStage stage, KeptBytes& kept) {
  const int64_t sums = g.exact ? 8 : 4, part = g.numel / g.ranks,
                of_states = stage.partitions_optimizer() ? g.ranks : 1,
                of_gradients = stage.partitions_gradients() ? g.ranks : 1,
                of_weights = stage.partitions_parameters() ? g.ranks : 1;
  if (!g.params_on_disk) kept.parameters += g.width * g.numel / of_weights;
  kept.gradients += sums * g.numel / of_gradients + (g.exact ? 4 * g.numel / of_states : 0);
  if (!g.state_on_disk) kept.state += g.state_width() * g.numel / of_states;
  kept.copies += sums * (stage.partitions_parameters()  ? g.tied / g.ranks
                         : stage.partitions_gradients() ? std::min(g.tied, part)
                                                        : g.tied);
  const int64_t streams =
      (g.params_on_disk ? g.width : 0) + (g.state_on_disk ? g.state_width() : 0);
  kept.buffers = std::max(kept.buffers, (part > kStreamBlock ? 2 : 1) * kStreamBlock * streams);
}

}  // namespace anymesh
