#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "framework/format/reshard/target.h"
#include "framework/format/sharded/sharded_checkpoint.h"
#include "framework/format/write/rank_files.h"

namespace anymesh {

// All that one model-parallel rank holds, before ZeRO cuts it among dp ranks. Nothing is read yet.
struct RankModel {
  struct Parameter {
    std::string name;
    Shape shape;                                              // of this rank's shard
    std::map<std::string, TensorRecord, std::less<>> states;  // fp32, exp_avg, ...
    Value step;
    std::map<std::string, Value, std::less<>> numbers;  // as ParameterShard's
  };
  // A parameter group of the optimizer. `settings` is its entry of param_groups. `entry` is a state
  // entry of the source, which shows the keys, their order and where the step is; None before the
  // first step.
  struct Group {
    std::vector<Parameter> parameters;
    Value settings, entry;
    bool experts = false;  // all parameters are stacked experts, of all ep ranks
  };

  int pp_rank = 0, tp_rank = 0;
  std::vector<Group> groups;
  Value model_state;  // the source's, of this rank
  // The model's tensors in the model's precision, in the module's order: parameters, second names
  // of tied ones, and buffers. Empty with a pipeline, whose weights are in layer files.
  NamedTensors module;
  std::set<std::string> buffers;
  std::map<std::string, std::string> shared;  // second name of a tied parameter -> first
  NamedTensors frozen;                        // parameters that no optimizer has
  bool excludes_frozen = false;               // exclude_frozen_parameters left some or all out
  // A pipeline's layers, by number, with names within the layer. Empty if the source's layer files
  // are good as they are.
  std::map<int, NamedTensors> layers;
  NamedTensors experts;  // stacked, of all ep ranks, in the model's precision

  const std::string& first_name(const std::string& name) const;  // if tied; else `name`
  std::map<std::string, TensorRecord> masters() const;           // of `groups`, by name
};

// Returns the precision of the model's weights: by the config in a model-states file, else by the
// weights there or in layer files.
DType model_dtype(const Value& model_state, const std::vector<NamedTensors>& layers);

// Whether the optimizer is cut among dp ranks: at ZeRO 1 to 3, and BF16_Optimizer's at ZeRO 0.
bool is_partitioned(const ShardedCheckpoint& source);

// Returns a group's names in the optimizer's order, from the order of its flat buffer:
// DeepSpeedZeroOptimizer may have dealt them out to dp ranks (round_robin_order).
std::vector<std::string> optimizers_order(const std::vector<std::string>& names,
                                          const Value& model_state, const Value& optimizer,
                                          int dp_size);

// Returns the second names of tied parameters that a model-states file records, and the first ones.
std::map<std::string, std::string> recorded_shared(const Value& model_state);

// Fills in `experts` with weight(master, name). They are in `module` too at ZeRO 3, and only then.
void add_experts(
    RankModel& rank, const CheckpointMesh& to,
    const std::function<TensorRecord(const TensorRecord&, const std::string&)>& weight);

// Returns the ranks of a checkpoint whose tp and pp stay as they are, by mp rank, with `module` as
// the mesh `to` needs it. Throws if optimizer states are missing or incomplete.
std::vector<RankModel> rank_models(const ShardedCheckpoint& source, const CheckpointMesh& to);

// Returns a pipeline's layer files, by name, in the precision `to`. Their names, keys and order
// stay: those are of the model's code. Weights are rounded from the masters in `ranks`, which are
// of the source's tp and pp. Buffers stay as they are.
NamedFiles recast_layer_files(const ShardedCheckpoint& source, const std::vector<RankModel>& ranks,
                              DType to);

}  // namespace anymesh
