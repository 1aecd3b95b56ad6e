// A DeepSpeed configuration file, read into the same fields as the flags.
//
//   {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
//    "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
//
// Keys that have a flag are set through it, so that a flag that says otherwise is an error naming
// both. Keys about speed and logs are ignored and returned. Everything else is refused with its
// path: unknown keys, keys given twice, schedulers (the flags describe the schedule).
#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

// Returns the paths of the ignored keys, such as "zero_optimization.overlap_comm".
std::vector<std::string> read_deepspeed_json(const std::string& path, FlagTable& flags,
                                             Config& config);

}  // namespace anymesh
