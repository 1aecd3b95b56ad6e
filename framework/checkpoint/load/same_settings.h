#pragma once

#include <string>
#include <vector>

#include "framework/format/torch_file.h"
#include "framework/run.h"

namespace anymesh {

// Compares a checkpoint's arguments with this run's flags. `metadata` is a model-states file. A
// file without Megatron's `args` has nothing to compare, except for the vocabulary.

// Throws unless the checkpoint has this run's model (ModelFacts::flags) and vocabulary, and, if it
// has an adapter, this run's (ModelFacts::adapter_flags).
void check_same_model(const Value& metadata, const CheckpointedRun& run);
// Refuses a run that sums in another way (--same-bits).
void check_same_bits(const Value& metadata, const CheckpointedRun& run);

// Throws unless the checkpoint has this run's LR schedule.
void check_same_schedule(const Value& metadata, const LrSchedule& schedule);

// Returns a line for each other setting that changes what training computes and that differs: those
// of ModelFacts::training_flags and of the framework, and, if the checkpoint does not say in which
// order it read its data, the flags of the data. The optimizer's constants are in param_groups
// (same_optimizer.h), the schedule's in lr_scheduler.
std::vector<std::string> announce_settings(const Value& metadata, const CheckpointedRun& run);

// Returns "global batch size 24 -> 12 ..." if it differs, else an empty string.
std::string announce_batch_size(const Value& metadata, const CheckpointedRun& run);

}  // namespace anymesh
