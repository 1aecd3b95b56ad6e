// Draws which rank holds which layers, tp slices and ZeRO partitions, from what pretrain_gpt printed
// at its start. Throws if the file lacks those lines.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure mesh_figure(const std::string& path);

}  // namespace anymesh
