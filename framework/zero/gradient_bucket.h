#pragma once

#include <vector>

#include "framework/comm/communicator.h"
#include "framework/zero/memory.h"
#include "framework/zero/partition_layout.h"

namespace anymesh {

// Stages 2 and 3: collects the gradients of some of a group's parameters while the backward runs,
// and reduces them to the ranks that own them as soon as all are there. Only the sum of this rank's
// partition is kept.
class GradientBucket {
 public:
  // Covers parameters [first, last) of the group. The sums of this rank's fragments are added to
  // `sums`, which begins at element `base` of the partition. `gauge` outlives the bucket.
  GradientBucket(const PartitionLayout& layout, size_t first, size_t last, CommPtr dp,
                 torch::Tensor sums, int64_t base, ByteGauge* gauge);

  void add(size_t param, const torch::Tensor& gradient);
  // Reduces the gradients that have arrived, if any. Needed when a micro-batch did not use all of
  // the parameters.
  void flush();

 private:
  size_t params_, arrived_ = 0;
  CommPtr dp_;
  torch::Tensor sums_;
  std::vector<Fragment> places_;  // every rank's fragments, with their starts in the buffer
  std::vector<int64_t> counts_;   // elements of each rank
  std::vector<Fragment> mine_;
  int64_t base_;
  torch::Tensor buffer_;  // allocated only while gradients arrive
  ByteGauge* gauge_;      // bytes of all buckets' buffers
};

}  // namespace anymesh
