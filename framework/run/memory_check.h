#pragma once

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// Throws, before anything is allocated, if this machine's ranks need more than all of its memory for
// parameters, gradients, optimizer state and a micro-batch's tokens (the closed form of
// zero/memory_report.h; activations come on top). The message has the bytes and the flags. `local`
// has the machine's ranks. Counts the host's memory, so ranks on GPUs pass. Collective over
// grid.world and `local`.
void check_memory(const StageModule& stage, const Config& config, const ProcessGrid& grid,
                  Communicator& local);

}  // namespace anymesh
