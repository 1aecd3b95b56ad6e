#pragma once

// An ordinary checkpoint for another mesh, as a job on that mesh would have written it.
#include "framework/format/reshard/dcp_export.h"   // a folder of torch.distributed.checkpoint
#include "framework/format/reshard/reshard.h"      // ds_reshard
#include "framework/format/reshard/target.h"       // the mesh: tp, pp, dp, ZeRO stage, precision
#include "framework/format/reshard/uncut_model.h"  // the optimizer's groups
