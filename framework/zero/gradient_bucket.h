#pragma once

#include <vector>

#include "framework/comm/communicator.h"
#include "framework/memory.h"
#include "framework/zero/partition_layout.h"

namespace anymesh {

// Stages 2 and 3: gradients of some parameters of a group, gathered while the backward runs and
// reduced to the ranks that own them as soon as all of them are there. Nothing is kept but the sum
// of this rank's partition.
class GradientBucket {
 public:
  // Parameters [first, last) of the group. The sums of this rank's fragments are added to `sums`,
  // whose element 0 is element `base` of the partition. `gauge` outlives the bucket.
  GradientBucket(const PartitionLayout& layout, size_t first, size_t last, CommPtr dp,
                 torch::Tensor sums, int64_t base, ByteGauge* gauge);

  void add(size_t param, const torch::Tensor& gradient);
  // Reduces what has arrived, if anything has: for parameters that a micro-batch did not use.
  void flush();

 private:
  size_t params_, arrived_ = 0;
  CommPtr dp_;
  torch::Tensor sums_;
  std::vector<Fragment> places_;  // every rank's, with their starts in the buffer
  std::vector<int64_t> counts_;   // elements of each rank
  std::vector<Fragment> mine_;
  int64_t base_;
  torch::Tensor buffer_;  // only while gradients arrive
  ByteGauge* gauge_;      // of all buckets' buffers
};

}  // namespace anymesh
