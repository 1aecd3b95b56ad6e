#pragma once

#include <vector>

#include "framework/checkpoint/format/source_checkpoint.h"

namespace anymesh {

// What source_checkpoint.cpp leaves to one source file for each layout: to fill in `parameters` and
// `optimizer_state`. `optimizers` holds the optimizer file of (dp_rank, mp_rank) at dp_rank *
// mp_size + mp_rank. What they open themselves is opened with `checks`, which may be null.
void read_zero12(SourceCheckpoint& source,
                 const std::vector<Value>& optimizers);  // source_zero12.cpp
void read_zero3(SourceCheckpoint& source, const std::vector<Value>& optimizers,
                DeferredChecks* checks);                              // source_zero3.cpp
void read_zero0(SourceCheckpoint& source, DeferredChecks* checks);    // source_zero0.cpp
void read_weights(SourceCheckpoint& source, DeferredChecks* checks);  // source_weights.cpp

// What ZeRO 3 does not train, cut over the model-states files as trained parameters are over the
// optimizer's.
void read_frozen_of_zero3(SourceCheckpoint& source, DeferredChecks* checks);

// All weights of a tp rank's model in the order of named_parameters(): tied layers first, then by
// layer. With a pipeline these are the weights of all stages.
NamedTensors weights_of(const SourceCheckpoint& source, int tp_rank, DeferredChecks* checks);

// Of a dict in param_shapes, in its order.
struct NamedShape {
  std::string name;
  Shape shape;
};
std::vector<NamedShape> named_shapes(const Value& dict);

// Adds elements [begin, begin + numel) of a shard, found at `start` of dp_rank's flat tensor.
void add_fragment(SourceShard& shard, StateIndex state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel);
// The same of masters and, unless `adam` is None, of the moments that it has.
void add_fragments(SourceShard& shard, int dp_rank, const Value& fp32, const Value& adam,
                   int64_t start, int64_t begin, int64_t numel);

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
