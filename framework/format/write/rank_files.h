#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/layout/experts.h"
#include "framework/format/layout/partition.h"

namespace anymesh {

// The contents of one rank's files, with DeepSpeed's keys in DeepSpeed's order. A save makes them
// from memory (checkpoint/save/*_states.cpp), ds_reshard from files (reshard/*_files.cpp).
//
// The state_dict() of an optimizer:
//
//   const Value torch = torch_state({{.settings = settings, .states = {state}}});
//   const Value state = zero12_state(common, /*stage=*/1, torch, {flat});
//
// `common` has what all ranks' optimizers have in common, under the keys of ZeRO 1.

// A group of torch's optimizer: its entry of param_groups, and the state of each tensor in it. A
// state is None before the first step.
struct TorchGroup {
  Value settings;
  std::vector<Value> states;
};
Value torch_state(const std::vector<TorchGroup>& groups);

// A flat tensor of a rank: its part of a parameter group, or at ZeRO 3 of a sub-group.
struct FlatState {
  TensorRecord master = {};
  bool experts = false;
  // Among the ranks that the tensor is cut over; `edp` counts them for dense parameters too.
  ExpertSpread::Rank place = {};
  // ZeRO 1 and 2:
  int64_t padding = 0;                                           // of the rank's partition
  std::vector<int64_t> gaps = {};                                // after each parameter
  std::vector<std::pair<std::string, Fragment>> fragments = {};  // of parameters, by name
};

// DeepSpeedZeroOptimizer's; BF16_Optimizer's lacks some keys.
Value zero12_state(const Value& common, int stage, const Value& torch,
                   const std::vector<FlatState>& flats, bool is_bf16_optimizer = false);
// DeepSpeedZeroOptimizer_Stage3's.
Value zero3_state(const Value& common, int dp_size, const Value& torch,
                  const std::vector<FlatState>& flats);

// Returns a DynamicLossScaler. Attributes that `given` lacks get DeepSpeed's defaults.
Value dynamic_loss_scaler_of(const Value& given);

// Files with weights in the model's precision, beside the model-states file; by name.
using NamedFiles = std::vector<std::pair<std::string, Value>>;

// Returns the files of a pipeline stage's layers, which are given by number:
// layer_02-model_01-model_states.pt.
NamedFiles layer_files(const std::map<int, NamedTensors>& layers, int tp_rank);

// Returns a file for each expert that rank.ep has in stacked parameters [E / ep, ...]:
// layer_0_expert_3_mp_rank_01_model_states.pt. The edp ranks, which hold the same experts, take
// turns.
NamedFiles expert_files(const ExpertSpread& spread, const NamedTensors& stacked,
                        const ExpertSpread::Rank& rank, int tp_rank);

}  // namespace anymesh
