// Draws when each rank ran the forward and the backward of each micro-batch, from a trace:
//
//   pretrain_gpt --profile-step 30 --trace step30.json ...
//
// Throws for a file that is no such trace, and for more than 64 ranks.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure pipeline_figure(const std::string& path);

}  // namespace anymesh
