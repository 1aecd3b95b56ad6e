#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/sharded/sharded_checkpoint.h"
#include "framework/util/errors.h"

namespace anymesh {

// Fill in `parameters` and `optimizer_state` for sharded_checkpoint.cpp; each layout has its own
// source file. `optimizers` holds the optimizer file of (dp_rank, mp_rank) at dp_rank * mp_size +
// mp_rank.
void read_zero12(ShardedCheckpoint& source,
                 const std::vector<Value>& optimizers);  // zero12.cpp
void read_zero3(ShardedCheckpoint& source,
                const std::vector<Value>& optimizers);  // zero3.cpp
// ZeRO 0's optimizers of ep ranks, by mp rank; each with its ep rank. None without experts.
using ExpertOptimizers = std::map<int, std::vector<std::pair<int, Value>>>;
void read_zero0(ShardedCheckpoint& source, const ExpertOptimizers& experts,
                bool module_order);  // zero0.cpp
// Takes all parameters from the model's weights, in place of masters.
void read_weights(ShardedCheckpoint& source);  // weights.cpp

// BF16_Optimizer at ZeRO 0 (bf16 with a pipeline) records no shapes: puts the names in its
// param_slice_mappings into param_shapes, without shapes. Returns whether there are such names.
bool name_mapped_parameters(ShardedCheckpoint& source, const std::vector<Value>& optimizers);

// Puts param_shapes where later versions have them: DeepSpeed 0.4.5 to 0.5.4 kept them in the
// optimizer files.
void take_older_shapes(ShardedCheckpoint& source, const std::vector<Value>& optimizers);

// Finds ZeRO 3's frozen parameters in `frozen_parts`, which are partitioned as trained parameters
// are over the optimizer files.
void read_frozen_of_zero3(ShardedCheckpoint& source);

// Reads `layers` and `model_tensors`. Needs `model_states` and `layer_files`. Throws if a tied
// layer's file cannot be told from another's.
void read_model_tensors(ShardedCheckpoint& source, int threads, RecordChecksums* checks);

// An entry of a dict in param_shapes; named_shapes() keeps the dict's order.
struct NamedShape {
  std::string name;
  Shape shape;
};
std::vector<NamedShape> named_shapes(const Value& dict);

std::vector<std::string> names_of(const std::vector<NamedShape>& parameters);

// Returns a tp rank's model tensors that may be trained: no buffers, and only the first name of a
// tied weight.
std::vector<NamedShape> trainable(const ShardedCheckpoint& source, int tp_rank);

// Returns elements [begin, begin + count) of a tensor.
std::vector<float> floats_at(const TensorRecord& tensor, int64_t begin, int64_t count);

// Whether each element of `master`, rounded to the weight's precision, equals the weight's element.
bool rounds_to(const TensorRecord& master, const TensorRecord& weight);

// state_order.cpp: finds the parameter of each master or state of an optimizer, where neither
// names nor an order are recorded. `candidates` are all parameters of the model. By value, a master
// belongs to the only candidate with a weight that it rounds to. By shape, states belong to the
// only candidate of their shape, or of which they may be factored. Throws Unproven where there is
// no such candidate. By value, several matching candidates of one size only set `doubt`.
struct Unproven : DamagedFile {
  using DamagedFile::DamagedFile;
};
struct Order {
  std::vector<std::vector<NamedShape>> groups;  // as the optimizer's; unnamed: no states to assign
  std::string doubt;                            // why states cannot be assigned; empty if they can
  std::set<std::string> doubtful;               // parameters whose masters cannot be told apart
};
using Weights = std::map<std::string, TensorRecord>;
using States = std::map<int64_t, Value>;  // a base optimizer's, by index
Order order_by_value(const Value& masters, std::vector<NamedShape> candidates,
                     const Weights& weights);
Order order_by_shape(const Value& param_groups, const States& states,
                     const std::vector<NamedShape>& candidates);

// An optimizer's states for the elements of one flat tensor or one parameter.
struct OptimizerStates {
  std::vector<std::pair<std::string, Value>> tensors;   // by name, one number per element
  std::vector<std::pair<std::string, Value>> factored;  // fewer, as is_factored() says
  std::vector<std::pair<std::string, Value>> numbers;   // one for all, beside the step
  Value step;
};
// Returns the states in `entry`, an entry of a base optimizer's state (None before the first step),
// with the step from there or from the param group. `counts` are the element counts that a flat
// state may have. `shape` is that of the one parameter that has these states; null if they are
// flat. Throws if Adam's moments have another size. Other states that do not fit are left out and
// set states_refused.
OptimizerStates states_of(ShardedCheckpoint& source, const Value& entry, const Value& group,
                          const std::vector<int64_t>& counts, const Shape* shape = nullptr);

// Adds elements [begin, begin + numel) of a shard, which are at `start` of dp_rank's flat tensor.
void add_fragment(ParameterShard& shard, std::string_view state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel);
// The same for the masters and all other states. Factored states are added whole.
void add_fragments(ParameterShard& shard, int dp_rank, const Value& fp32,
                   const OptimizerStates& states, int64_t start, int64_t begin, int64_t numel);

// Whether a group's parameters are experts. Throws if only some are.
bool has_experts(const ShardedCheckpoint& source, const std::vector<NamedShape>& group);

// The place of a group's partition that one rank holds.
struct GroupPart {
  GroupPart(const ShardedCheckpoint& source, bool has_experts, int dp_rank, int mp_rank,
            const Value& param_group);
  int rank, ranks;  // the partition's number, and how many there are
  bool experts;
  int mp_rank;  // that the parameters' shards are listed at
  ExpertSpread::Rank spread;

  ExpertSpread::Place place(const ShardedCheckpoint& source, const NamedShape& parameter) const {
    return experts ? source.experts.place_of(parameter.name, parameter.shape, spread)
                   : ExpertSpread::Place{parameter.name, parameter.shape, 0};
  }
};

// Returns the model-parallel rank with the most groups, the first of them: a stage may have no
// experts. REQUIRES: `groups` are read.
size_t rank_with_all_groups(const ShardedCheckpoint& source);

// Returns the shard of a parameter on a rank; the first call makes it, with `shape`. set_numbers()
// sets the step and the other single numbers. It throws if a later dp rank has another step, and
// refuses the states if it has another number.
ParameterShard& shard_of(ShardedCheckpoint& source, const std::string& name, int mp_rank,
                         const Shape& shape);
void set_numbers(ShardedCheckpoint& source, ParameterShard& shard, const std::string& name,
                 const OptimizerStates& states);
// Returns a universal optimizer_state from `state`, that of DeepSpeed's optimizer: without the
// tensors that the parameters' own files hold, and with zero paddings. `torch` is the state of
// torch's optimizer in it, whose step and other single numbers the loader of ZeRO 3 and ds_reshard
// need. DeepSpeed's converter also leaves rank 0's flat tensors in, which nothing reads.
Value universal_state(Value state, const Value& torch, int dp_size);

// Returns the entry of a base optimizer's `states` with this index; None before the first step.
Value entry_of(const Value& states, size_t index);

}  // namespace anymesh
