#pragma once

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// Returns a lower bound of the bytes that a rank has in use, beside its states, when the forward
// pass of a micro-batch ends: what each layer of the smallest stage keeps for the backward pass,
// and on the last stage the logits. `width` is an element's.
double activation_bytes(const Config& config, int64_t width, bool is_last_stage);

// Throws, before anything is allocated, if this machine's ranks need more than all of its memory
// for parameters, gradients and optimizer state (the closed form of zero/memory_form.h), a
// micro-batch's tokens and its activations. The message has the bytes and the flags. `local` has
// the machine's ranks. Counts the host's memory, so ranks on GPUs pass. Collective over grid.world
// and `local`.
void check_memory(const StageModule& stage, const Config& config, const ProcessGrid& grid,
                  Communicator& local);

}  // namespace anymesh
