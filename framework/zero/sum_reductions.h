#pragma once

#include <climits>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "framework/zero/memory_form.h"
#include "framework/zero/param_group.h"

namespace anymesh {

// Stages 0 and 1: reduces the sums of a step over dp, part by part, beside the backward that
// completes them. Parts start in one order on all ranks, that of a backward, whichever is complete
// first: a rank may have no gradient for a parameter.
class SumReductions {
 public:
  // Consecutive parameters of a group, and the elements of the group's sums that are theirs.
  class Part;

  // Cuts a group. Its sums are scattered to the ranks' partitions, in the dtype `sent` or in their
  // own, or else reduced to all ranks. A part has about `most` elements. Returns that of each
  // parameter.
  std::vector<Part*> add(const ParamGroup& group, bool scatters, std::optional<torch::Dtype> sent,
                         int64_t most = kReducedAtOnce);

  // The sum of one of the part's parameters is complete.
  void completed(Part& part);
  // Starts the rest, and waits for all.
  void finish();
  // A step begins. The last one may have failed on the way.
  void begin();

 private:
  static constexpr size_t kMost = 8;  // under way, so that few of their copies live
  void start(Part& part);
  void end_oldest();

  std::list<Part> parts_;
  std::deque<Part*> under_way_;
};

class SumReductions::Part {
 public:
  Part(CommPtr replicas, torch::Tensor sums) : replicas_(std::move(replicas)), sums_(sums) {}

 private:
  friend class SumReductions;

  // Starts to add the ranks' sums_. At stage 1 a rank gets those of its partition, in mine_; at
  // stage 0 all of them, in sums_. Sets is_started_. Until finish(), travels_ holds what is sent, and
  // pending_ is what it waits for.
  void start();

  CommPtr replicas_;
  torch::Tensor sums_, mine_;    // mine: this rank's of them, if they are scattered
  std::vector<int64_t> counts_;  // of the ranks, likewise
  std::optional<torch::Dtype> sent_;
  int unit_ = INT_MAX;  // the first that uses one of the parameters: its backward is the last
  size_t params_ = 0, missing_ = 0;
  bool is_started_ = false;
  torch::Tensor travels_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace anymesh
