#pragma once

#include <vector>

#include "framework/checkpoint/format/partition.h"
#include "framework/comm/process_grid.h"
#include "framework/optim/sweeps.h"
#include "framework/param_spec.h"

namespace anymesh {

// AdamW with its state partitioned over the data-parallel group (ZeRO, arXiv:1910.02054).
//
//   stage   gradients while accumulating   optimizer state   parameters   traffic a step, in
//   parameters 0       whole                          whole             whole        2: all-reduce
//   of gradients 1       whole                          partition         whole        2:
//   reduce-scatter of gradients, all-gather
//
// Parameters form two groups, with and without weight decay; a group's tensors are laid end to end
// in DeepSpeed's flat layout and cut in equal partitions, so that a save writes what is in memory.
// Gradients accumulate in that layout in fp32 (float64 for float64 models), whatever the
// parameters' dtype. The fp32 master of an fp32 parameter is the parameter itself. Sums over dp are
// folded in rank order: stages 0 and 1 agree in every bit.
struct ZeroOptions {
  int stage = 0;
  AdamOptions adam;
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0 = no clipping
};

class ZeroOptimizer {
 public:
  // A piece of one parameter in this rank's partition: 1-D views of equal length.
  struct Piece {
    size_t param;         // index in Group::params
    int64_t param_start;  // first element, in this tp rank's slice of the parameter
    torch::Tensor param_view, master, gradient, exp_avg, exp_avg_sq;
  };
  struct Group {
    double weight_decay = 0;
    std::vector<ParamSpec> params;
    FlatGroup layout;
    torch::Tensor gradient;             // [partitions * P]
    torch::Tensor master;               // [P]; undefined if the parameters are their own masters
    torch::Tensor exp_avg, exp_avg_sq;  // [P]
    std::vector<Piece> pieces;
    std::vector<torch::Tensor>
        second_use_gradients;  // by parameter; only of a tied weight that is used twice here
  };

  ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid, ZeroOptions options);

  // Reduces the accumulated gradients and returns their global norm, before clipping.
  // `local_square_sum` of a rank with a non-finite gradient is not finite.
  double reduce_gradients();
  double local_square_sum() const { return local_square_sum_; }

  // Clips, updates this rank's partition, gathers the parameters, clears the gradients.
  void step(double lr, double grad_norm);

  // Makes masters from the parameters, after weights alone were loaded.
  void masters_from_params();
  // Makes parameters from the masters, everywhere, after the masters were loaded.
  void params_from_masters();

  const ZeroOptions& options() const { return options_; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  // The group over which a partition is one part: dp, or a group of this rank alone at stage 0.
  Communicator& partitions() const { return *partitions_; }

  int64_t steps = 0;  // Adam's

 private:
  void add_group(std::vector<ParamSpec> params, double weight_decay);
  void accumulate_into(const torch::Tensor& leaf, const torch::Tensor& flat);
  void add_tied_gradients();
  bool counts_in_norm(const ParamSpec& spec) const;
  void gather_params(Group& group);

  const ProcessGrid& grid_;
  ZeroOptions options_;
  CommPtr partitions_;
  std::vector<Group> groups_;
  double local_square_sum_ = 0;
};

}  // namespace anymesh
