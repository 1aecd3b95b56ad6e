#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "framework/optim/optimizer.h"
#include "framework/param_spec.h"
#include "framework/zero/gradient_bucket.h"
#include "framework/zero/offload/state_tensor.h"
#include "framework/zero/partition_layout.h"

namespace anymesh {

class MatrixUpdates;

// Parameters that are optimized alike and that the same ranks hold, and this rank's partition [P]
// of their state, in DeepSpeed's layout (partition_layout.h), in memory or on disk.
struct ParamGroup {
  // A piece of one parameter in the partition: 1-D views of equal length.
  struct Piece {
    size_t param;             // index in ParamGroup::params
    int64_t param_start;      // first element, in this tp rank's slice of the parameter
    int64_t partition_start;  // first element, in the partition
    torch::Tensor gradient;
    torch::Tensor sum;  // of the gradients, until all are there: `gradient` itself, or int64
    StateTensor weight, master;
    std::vector<StateTensor> states;  // as ParamGroup::states
    int64_t numel() const { return gradient.numel(); }
  };

  const Optimizer* optimizer = nullptr;
  double weight_decay = 0;
  CommPtr replicas;  // the ranks that hold them: dp, or edp for experts. Gradients are summed there
  CommPtr partitions;  // those with one partition each: the replicas; at stage 0 this rank alone
  std::vector<ParamSpec> params;
  PartitionLayout layout;
  torch::Tensor sums;               // of gradients: [ranks * P] at stages 0 and 1, [P] at 2 and 3
  torch::Tensor gradient;           // [P], a part of `sums` unless these are int64 (--same-bits)
  StateTensor weights;              // [P] at stage 3, in the parameters' dtype
  StateTensor master;               // [P], unless the weights are their own masters
  std::vector<StateTensor> states;  // [P] each, in the order of optimizer->states()
  std::vector<std::vector<torch::Tensor>> whole_states;  // by parameter, on each of its ranks
  std::vector<Piece> pieces;
  std::vector<Optimizer::Tensors> in_memory;  // what a step works on; empty if there is a swap file
  std::shared_ptr<const MatrixUpdates> matrices;  // of an optimizer that sees them
  std::deque<GradientBucket> buckets;             // stages 2 and 3; addresses must not change
};

}  // namespace anymesh
