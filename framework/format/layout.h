#pragma once

// The arithmetic and the names of DeepSpeed's checkpoints.
#include "framework/format/layout/affine_map.h"    // the cuts that AutoTP records
#include "framework/format/layout/experts.h"       // which ranks hold which experts
#include "framework/format/layout/merge_rules.h"   // which cut each parameter has, by its name
#include "framework/format/layout/names.h"         // file names and dictionary keys
#include "framework/format/layout/partition.h"     // how ZeRO cuts flat buffers among dp ranks
#include "framework/format/layout/shard_layout.h"  // how tensor parallelism cuts a parameter
#include "framework/format/layout/sub_params.h"    // fused parameters
