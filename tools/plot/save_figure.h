// Draws the time of a run's saves from call to commit, and how long training stood still, from the
// lines that pretrain_gpt prints with --report-save:
//
//   saved checkpoints/global_step3 in 480 ms (0.00375 GB at 0.00782 GB/s)
//   save times, ms, the greatest of all ranks: copy 0.0, gather 0.0, serialise 14.6, write 0.1, ...
//
// Draws the last 8. Throws for a file without such lines.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure save_figure(const std::string& path);

}  // namespace anymesh
