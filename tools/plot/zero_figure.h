// Draws what each data parallel rank holds and uses at each moment of a step, for the ZeRO stages 0
// to 3, from the mesh that pretrain_gpt printed at its start. Throws for more than 8 data parallel
// ranks.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure zero_figure(const std::string& path);

}  // namespace anymesh
