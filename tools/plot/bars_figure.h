// Draws a bar of parts for each line of a CSV, whose header names the parts:
//
//   ZeRO,parameters,gradients
//   0,1.5,3
//
// Throws for a line of another width and for lengths that are not numbers from 0 on.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure bars_figure(const std::string& path);

}  // namespace anymesh
