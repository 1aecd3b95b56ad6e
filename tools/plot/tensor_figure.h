// Draws the two matrices of a run's MLP, cut by column and by row over the tensor parallel ranks,
// with their shapes and what each rank holds, from what pretrain_gpt printed at its start. Throws
// for more than 16 tensor parallel ranks.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure tensor_figure(const std::string& path);

}  // namespace anymesh
