#pragma once

#include <span>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/zero/param_group.h"
#include "framework/zero/stage.h"

namespace anymesh {

// Shows the matrices of a group to an optimizer that sees them whole (Optimizer::of_matrix()).
//
// Each matrix of a stage has an owner among the tp x dp ranks that hold it. In rounds of one matrix
// a rank, the most costly first, owners receive the elements that the others have, and send them
// the results. So the work is shared, no rank has more than one whole matrix at a time, and each
// result has the bits of one process. A step moves each element twice, in fp32.
class MatrixUpdates {
 public:
  // `ranks` hold the group (ProcessGrid::holders). The group must outlive the object.
  MatrixUpdates(const ParamGroup& group, const ProcessGrid& grid, ZeroStage stage, CommPtr ranks);

  // Replaces the gradients of the group's pieces, and sets its whole states. Collective over
  // `ranks`.
  void update(const Optimizer::Step& step) const;

 private:
  // A rank that holds the group, and its elements of each parameter's tp slice.
  struct Holder {
    int tp, partition;
    std::vector<Fragment> fragments;  // by parameter; numel 0: none
  };
  using Counts = std::vector<int64_t>;  // elements that move from or to each rank

  // Whether `sender` is the one of several that hold the same elements who sends them.
  bool sends(const Holder& sender, const Holder& owner, size_t param) const;
  // An all-to-all of flat tensors, which are in the order of the ranks.
  torch::Tensor exchanged(const std::vector<torch::Tensor>& sent, const Counts& receive_counts,
                          const Counts& send_counts) const;
  // Returns a matrix out of the elements of each rank in turn, and each rank's elements of it.
  torch::Tensor joined(size_t param, const torch::Tensor& received, const Counts& counts) const;
  // Calls of_matrix(), without the padding of the vocabulary.
  torch::Tensor updated(size_t param, const torch::Tensor& whole,
                        const Optimizer::Step& step) const;
  std::vector<torch::Tensor> cut(size_t param, const torch::Tensor& whole) const;
  // Sends the whole states of a round's parameters from their owners to the others.
  void share_states(std::span<const size_t> round) const;
  // The part of a matrix that is the holder's tp slice, as a view.
  torch::Tensor slice(size_t param, const torch::Tensor& whole, const Holder& holder) const;

  const ParamGroup& group_;
  const int tp_size_;
  const bool partitioned_;
  const CommPtr ranks_;
  std::vector<Holder> holders_;      // by rank
  std::vector<size_t> order_;        // parameters, the most costly first
  std::vector<torch::Tensor> mine_;  // this rank's gradients, by parameter; undefined: none
};

}  // namespace anymesh
