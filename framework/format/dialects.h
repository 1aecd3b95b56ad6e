#pragma once

// Checkpoints of other frameworks: where their tensors lie.
#include "framework/format/dialects/dcp.h"  // torch.distributed.checkpoint
#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/dialects/torch_dist.h"  // Megatron-Core's
