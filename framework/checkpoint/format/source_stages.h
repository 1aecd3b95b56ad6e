#pragma once

#include <vector>

#include "framework/checkpoint/format/source_checkpoint.h"

namespace anymesh {

// What source_checkpoint.cpp leaves to one source file for each layout: to fill in `parameters` and
// `optimizer_state`. `optimizers` holds the optimizer file of (dp_rank, mp_rank) at dp_rank *
// mp_size + mp_rank.
void read_zero12(SourceCheckpoint& source,
                 const std::vector<Value>& optimizers);  // source_zero12.cpp
void read_zero3(SourceCheckpoint& source,
                const std::vector<Value>& optimizers);  // source_zero3.cpp
void read_zero0(SourceCheckpoint& source);              // source_zero0.cpp

// Adds elements [begin, begin + numel) of a shard, found at `start` of dp_rank's flat tensor.
void add_fragment(SourceShard& shard, StateIndex state, int dp_rank, const Value& flat,
                  int64_t start, int64_t begin, int64_t numel);

// The shard of a parameter on a rank, made on first use; fragments of later dp ranks must agree on
// shape and step.
SourceShard& shard_of(SourceCheckpoint& source, const std::string& name, int pp_rank, int tp_rank,
                      const Shape& shape);
void set_step(SourceShard& shard, const std::string& name, const Value& step);

// Of base optimizer state entry `state` and its param group: the step, wherever the optimizer keeps
// it.
Value step_of(const Value& state, const Value& group);

}  // namespace anymesh
