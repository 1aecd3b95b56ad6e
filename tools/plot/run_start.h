// The settings of a run, from what pretrain_gpt printed at its start:
//
//   mesh: tensor 2 x pipeline 2 x data 2 = 8 ranks, 1 threads per rank
//   model: 218496 parameters, at most 60608 on a rank; vocabulary of 256, padded to 256
//     --num-layers 4
//     mock_data true
//
// Flags that are not there have their defaults. Throws, with the file's name, for a file without
// these lines, for a flag that pretrain_gpt does not have, and for settings that cannot be trained.
#pragma once

#include <cstdint>
#include <string>

#include "framework/comm/topology.h"
#include "framework/config/config.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

struct RunStart {
  Topology mesh;
  int64_t parameters = 0;  // of the largest rank
  Config config;
  GptConfig gpt;  // resolved, but for its vocabulary
  BatchPlan plan;
};

RunStart read_run_start(const std::string& path);

}  // namespace anymesh
