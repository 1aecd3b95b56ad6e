#pragma once

#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/engine.h"
#include "framework/run/stop_request.h"

namespace anymesh {

// Returns the options that the flags set for every save.
SaveOptions save_options(const CheckpointConfig& checkpoint);

// Runs the training loop: data, steps, evaluation, log, saves. It uses samples and the engine, not
// GPT, and starts from the engine's state. With a null `valid_data` there is no evaluation.
//
// A step reads the next global_batch_size samples in their global order, whatever the mesh. An
// interrupted run saves and returns. Once resumed, it repeats the uninterrupted run bit for bit.
void train(const Config& config, const BatchPlan& plan, Engine& engine, const Dataset& train_data,
           const Dataset* valid_data, StopRequest& interruption);

}  // namespace anymesh
