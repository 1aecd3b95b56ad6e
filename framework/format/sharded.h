#pragma once

// A tag folder as its ranks wrote it: parameters, their shards, and where the bytes of each lie.
#include "framework/format/sharded/consistency.h"         // whether files are of one save
#include "framework/format/sharded/sharded_checkpoint.h"  // opens a tag folder, ZeRO 0 to 3
#include "framework/format/sharded/source_files.h"        // whether anybody writes there meanwhile
#include "framework/format/sharded/tensor_views.h"  // shards joined and merged as they are read
