#pragma once

#include <string>
#include <vector>

#include "framework/format/reshard/rank_model.h"
#include "framework/format/write/rank_files.h"

namespace anymesh {

// The optimizer of one model-parallel rank as DeepSpeed's classes write it: which class, and how it
// lays the groups out, follow from the stage, the precision and the config (`ds_config`).
//
//   ZeRO 0, fp32    torch's own state, in the model-states file
//   ZeRO 1, 2       DeepSpeedZeroOptimizer
//   ZeRO 1          BF16_Optimizer, in bf16 with gradients summed in fp32
//   ZeRO 3          DeepSpeedZeroOptimizer_Stage3
class OptimizerFiles {
 public:
  // `common` has what all ranks share, under the keys of ZeRO 1: the loss scaler, clip_grad.
  OptimizerFiles(const RankModel& rank, const CheckpointMesh& mesh, ExpertSpread experts,
                 const Value& config, const Value& common);

  const ExpertSpread& experts() const { return experts_; }
  // The shapes in the model-states file; None at ZeRO 0 of DeepSpeed without experts.
  const Value& param_shapes() const { return param_shapes_; }
  Value state(int dp_rank) const;  // optimizer_state_dict, of ZeRO 1 to 3
  // `optimizer` of the model-states file, of ZeRO 0; with experts, of the file of an ep rank.
  Value whole_state(int ep_rank = 0) const;

 private:
  using Group = RankModel::Group;
  // Consecutive elements of the rank's flat tensor: those of a parameter from `param_start` on.
  struct Flat {
    const Group* group;
    std::vector<Fragment> fragments;
    int64_t numel;  // with padding
  };

  using Groups = std::vector<Group>;
  // The rank's place among those that a group is cut over (FlatState::place).
  ExpertSpread::Rank place_of(int dp_rank, bool experts) const;
  const Groups& groups(int dp_rank) const;
  std::vector<Flat> flat_groups(int dp_rank) const;  // ZeRO 1 and 2
  std::vector<Flat> sub_groups(int dp_rank) const;   // ZeRO 3
  Value flat_torch_state(const std::vector<Flat>& flats, const Groups& groups) const;
  Value shapes() const;
  FlatState flat_state(const Flat& flat, int dp_rank) const;
  FlatGroup layout_of(const Group& group) const;
  std::vector<int64_t> gaps_of(const Group& group) const;

  CheckpointMesh mesh_;
  ExpertSpread experts_;
  Value common_;
  Value param_shapes_;
  // By ep rank, with its experts alone; parameters in the order of the flat buffers.
  std::vector<Groups> groups_;
  bool is_bf16_optimizer_ = false;
  bool whole_momentum_ = false;  // Muon's: each rank has that of all matrices in its partition
  int64_t alignment_ = 1;        // of each parameter in a flat buffer, in elements
  int64_t sub_group_size_ = 0;   // ZeRO 3
};

}  // namespace anymesh
