#pragma once

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// The files of a checkpoint that one rank writes.

// Receives each file. `owner` is the dp rank that owns the file, if all ranks of grid.dp know its
// contents and make the call. It is kAlone if only this rank does.
using WriteFile = std::function<void(const std::string& name, const Value& value, int owner)>;
inline constexpr int kAlone = -1;

// Calls `write` with the name and contents of each file that this rank owns or shares. Tensors are
// read from live memory only when the value is written. `metadata` is the result of model_states(),
// with the client's additions. Returns the seconds spent gathering from other ranks (weights_only).
double write_rank_files(const CheckpointedRun& run, const TrainState& state,
                        const SaveOptions& options, Value metadata, const WriteFile& write);

// The functions below, in model_states.cpp, write the files with weights in the model's precision.

// Writes the model-states file: `metadata`, with the weights in `module`. With a pipeline the
// weights go to layer files instead, which the dp ranks own in turn. At ZeRO 3 every rank has only
// a model-states file, with DeepSpeed's placeholders.
void write_model_states(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                        const WriteFile& write);

// Writes the files of ZeRO 0 to 2, whatever the stage, with all weights in them. dp rank 0 gathers
// the elements it lacks from the others, one parameter at a time. Collective over grid.dp; throws
// as RemoteTensors::serve does, not on all ranks. Returns the seconds spent gathering.
double write_weights_only(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                          const WriteFile& write);

// Writes pytorch_model.bin on rank 0, which gathers one parameter at a time. Collective over
// grid.world. Returns the seconds spent gathering.
double write_whole_model(const CheckpointedRun& run, const SaveOptions& options,
                         const WriteFile& write);

}  // namespace anymesh
