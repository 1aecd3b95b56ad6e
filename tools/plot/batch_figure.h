// Draws how the samples of a run's first step are dealt to its data parallel ranks and micro-batches,
// and where gradients are summed, from what pretrain_gpt printed at its start. Throws for more than
// 16 data parallel ranks or 32 samples of one.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure batch_figure(const std::string& path);

}  // namespace anymesh
