#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "framework/zero/param_group.h"

namespace anymesh {

// Stages 1 and 2: gathers a group's new parameters from the ranks' partitions, at once or
// `beside` the next forward. The parameters are separate tensors, aligned for GEMMs, so partitions travel
// through a buffer, a window of every partition at a time. A rank's partition has consecutive
// layers, so the first layers are complete after the first windows if a rank has many layers, and
// only at the end if many ranks share one.
class ParamGather {
 public:
  // The group must outlive it. A window takes `part` elements of each partition.
  ParamGather(const ParamGroup& group, bool beside, int64_t part);

  // Call this when this rank's partition is new. With `beside`, parameters are not complete before
  // the unit that uses them has been asked for, or finish().
  void start();
  // Waits for the parameters of a unit of the stage.
  void before(int unit);
  void finish();

 private:
  struct Window {
    int64_t begin, count;  // of each partition
    torch::Tensor buffer;  // [ranks, count]
    std::unique_ptr<Pending> pending;
  };
  // A window's parts of parameters, and theirs in the buffer, of this rank or of all others.
  struct Places {
    std::vector<torch::Tensor> params, places;
  };
  Places places_of(const Window& window, bool mine) const;
  void start_next();
  void end_oldest();
  void end(int64_t windows);

  const ParamGroup& group_;
  const bool beside_;
  const size_t most_;  // windows under way, with a buffer each
  const int ranks_, rank_;
  int64_t partition_, part_;  // elements of a partition, and of a window
  std::vector<torch::Tensor> flat_;
  std::vector<std::vector<Fragment>> fragments_;  // of each rank
  std::vector<int64_t> needed_;                   // windows, by unit
  int64_t ended_ = 0, started_ = 0, all_;
  std::deque<Window> under_way_;
};

}  // namespace anymesh
