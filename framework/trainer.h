#pragma once

#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/engine.h"
#include "framework/interruption.h"

namespace anymesh {

// What the flags say of every save.
SaveOptions save_options(const CheckpointConfig& checkpoint);

// The training loop: data, steps, evaluation, log, saves. It knows samples and the engine, not GPT,
// and goes on where the engine's state is. `valid_data` may be null: no evaluation.
//
// A step reads the next global_batch_size samples in their global order, whatever the mesh. A run
// that is interrupted saves and returns; one that then resumes repeats the run that was not, bit
// for bit.
void train(const Config& config, const BatchPlan& plan, Engine& engine, const Dataset& train_data,
           const Dataset* valid_data, Interruption& interruption);

}  // namespace anymesh
