// Reads a DeepSpeed configuration file into the same fields as the flags.
//
//   {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
//    "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
//
// A key that has a flag is set through the flag, so a contradiction between the two is an error
// that names both. Keys about speed and logs are ignored and returned. Everything else is refused
// with its path: unknown keys, repeated keys, and schedulers (the flags describe the schedule).
// "data_types.grad_accum_dtype" of half precision is taken with a note: sums are in fp32 here.
#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

// Returns the paths of the ignored keys, such as "zero_optimization.overlap_comm". Adds notes for
// the user, a line each.
std::vector<std::string> read_deepspeed_json(const std::string& path, FlagTable& flags,
                                             Config& config,
                                             std::vector<std::string>* notes = nullptr);

}  // namespace anymesh
