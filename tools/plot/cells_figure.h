// Draws a row of cells for each line 'stage 0: F0 F1 . B0', '.' an empty one. The letters are a cell's
// kind, and the digits after them are written into it. Throws for other lines.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure cells_figure(const std::string& path);

}  // namespace anymesh
