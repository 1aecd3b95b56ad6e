// Draws a row of cells for each line 'stage 0: F F . B', '.' an empty one. Throws for other lines.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure cells_figure(const std::string& path);

}  // namespace anymesh
