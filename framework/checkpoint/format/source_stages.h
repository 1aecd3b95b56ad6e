#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/checkpoint/format/source_checkpoint.h"

namespace anymesh {

// What source_checkpoint.cpp leaves to one source file for each layout: to fill in `parameters` and
// `optimizer_state`. `optimizers` holds the optimizer file of (dp_rank, mp_rank) at dp_rank *
// mp_size + mp_rank. What they open themselves is opened with `checks`, which may be null.
void read_zero12(SourceCheckpoint& source,
                 const std::vector<Value>& optimizers);  // source_zero12.cpp
void read_zero3(SourceCheckpoint& source, const std::vector<Value>& optimizers,
                DeferredChecks* checks);                       // source_zero3.cpp
void read_zero0(SourceCheckpoint& source, bool module_order);  // source_zero0.cpp
// All parameters as the model has them, for want of masters.
void read_weights(SourceCheckpoint& source);  // source_weights.cpp

// What ZeRO 3 does not train, cut over the model-states files as trained parameters are over the
// optimizer's.
void read_frozen_of_zero3(SourceCheckpoint& source, DeferredChecks* checks);

// SourceCheckpoint::model_tensors, which need `model_states` and `layer_files`. Refuses a tied
// layer whose file cannot be told from another's.
std::vector<NamedTensors> model_tensors(const SourceCheckpoint& source, int threads,
                                        DeferredChecks* checks);

// Of a dict in param_shapes, in its order.
struct NamedShape {
  std::string name;
  Shape shape;
};
std::vector<NamedShape> named_shapes(const Value& dict);

// Those of a tp rank's model tensors that may be trained: without buffers, and of a tied weight's
// names the first.
std::vector<NamedShape> trainable(const SourceCheckpoint& source, int tp_rank);

// Whether a weight is a master rounded to the model's precision, element by element.
bool rounds_to(const TensorRecord& master, const TensorRecord& weight);

// source_order.cpp: which parameter each of an optimizer's masters or states is of, where no name
// and no order is recorded. By value: a master rounds to the weight of its parameter alone among
// `candidates`, all that the model has. By shape: a state's is that of one of them alone. Throws
// Unproven where there is none such.
struct Unproven : ValueError {
  using ValueError::ValueError;
};
struct Order {
  std::vector<std::vector<NamedShape>> groups;  // as the optimizer's; unnamed: nothing to be given
  std::string doubt;                            // why states cannot be given: empty if they can
  std::set<std::string> doubtful;               // parameters whose masters cannot be told apart
};
using Weights = std::map<std::string, TensorRecord>;
using States = std::map<int64_t, Value>;  // of a base optimizer, by index
Order order_by_value(const Value& masters, std::vector<NamedShape> candidates,
                     const Weights& weights);
Order order_by_shape(const Value& param_groups, const States& states,
                     const std::vector<NamedShape>& candidates);

// An optimizer's states for the elements of one flat tensor, or of one parameter.
struct OptimizerStates {
  std::vector<std::pair<std::string, Value>> tensors;  // by name, a number for each element
  Value step;
};
// Of `entry` of a base optimizer's state (None: before the first step) and its param group.
// `counts`: how many elements may have a number. Moments of any other size are an error; what is not
// understood goes to states_refused.
OptimizerStates states_of(SourceCheckpoint& source, const Value& entry, const Value& group,
                          std::vector<int64_t> counts);

// Adds elements [begin, begin + numel) of a shard, found at `start` of dp_rank's flat tensor.
void add_fragment(SourceShard& shard, std::string_view state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel);
// The same of masters and of all other states.
void add_fragments(SourceShard& shard, int dp_rank, const Value& fp32,
                   const OptimizerStates& states, int64_t start, int64_t begin, int64_t numel);

// The shard of a parameter on a rank, made on first use; fragments of later dp ranks must agree on
// shape and step.
SourceShard& shard_of(SourceCheckpoint& source, const std::string& name, int mp_rank,
                      const Shape& shape);
void set_step(SourceShard& shard, const std::string& name, const Value& step);

// The entry of a base optimizer's `states` with this index; None before the first step.
Value entry_of(const Value& states, size_t index);

// Of base optimizer state entry `state` and its param group: the step, wherever the optimizer keeps
// it.
Value step_of(const Value& state, const Value& group);

}  // namespace anymesh
