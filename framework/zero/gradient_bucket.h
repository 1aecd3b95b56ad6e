#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/zero/memory.h"
#include "framework/zero/partition_layout.h"

namespace anymesh {

class GradientBucket;

// The reductions of a rank's buckets that run beside the backward, the oldest first, and the bytes
// of all buckets' buffers.
class BucketReductions {
 public:
  // Finishes the oldest one if too many buffers would wait for theirs. The computation waits then.
  void started(GradientBucket& bucket);
  void finish_all();
  ByteGauge bytes;

 private:
  static constexpr size_t kMost = 8;
  void finish_oldest();
  std::deque<GradientBucket*> under_way_;
};

// Stages 2 and 3: collects the gradients of some of a group's parameters while the backward runs,
// and reduces them to the ranks that own them as soon as all are there. Only the sum of this rank's
// partition is kept.
class GradientBucket {
 public:
  // Covers parameters [first, last) of the group. The sums of this rank's fragments are added to
  // `sums`, which begins at element `base` of the partition, when `reductions` finish it. They
  // outlive the bucket. Gradients travel in the dtype `sent`, or if it is empty in their own.
  GradientBucket(const PartitionLayout& layout, size_t first, size_t last, CommPtr dp,
                 torch::Tensor sums, int64_t base, std::optional<torch::Dtype> sent,
                 BucketReductions* reductions);

  void add(size_t param, const torch::Tensor& gradient);
  // Starts to reduce the gradients that have arrived, if any. Needed when a micro-batch did not use
  // all of the parameters.
  void flush();
  // Waits for the reduction, and adds its sums.
  void finish();

 private:
  size_t params_, first_, arrived_ = 0;
  CommPtr dp_;
  torch::Tensor sums_;
  // Fragments of one length at equal distances, of ranks that follow one another. One copy fills
  // them.
  struct Run {
    Fragment first;        // with its start in the buffer
    int64_t rows, stride;  // fragments; from one to the next in the buffer
  };
  std::vector<std::vector<Run>> runs_;  // of each parameter
  void place(const Fragment& fragment);
  std::vector<int64_t> counts_;  // elements of each rank
  std::vector<Fragment> mine_;
  int64_t base_;
  std::optional<torch::Dtype> sent_;
  torch::Tensor buffer_;  // allocated only while gradients arrive
  struct Reduction {
    torch::Tensor buffer, sum;
    std::shared_ptr<Pending> pending;  // shared, since groups are copyable
  };
  std::deque<Reduction> under_way_;  // the last micro-batch's may not be finished yet
  BucketReductions* reductions_;
};

}  // namespace anymesh
