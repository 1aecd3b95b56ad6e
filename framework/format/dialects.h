#pragma once

// Checkpoints of other frameworks: where their tensors lie.
#include "framework/format/dialects/dcp.h"  // torch.distributed.checkpoint
#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/dialects/dtensor_files.h"  // one of each rank, as veRL's
#include "framework/format/dialects/foreign.h"        // any of these
#include "framework/format/dialects/torch_dist.h"     // Megatron-Core's
