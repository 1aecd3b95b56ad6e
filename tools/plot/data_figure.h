// Draws how a run's documents become samples, from what pretrain_gpt printed at its start and from
// the token files that it names: the documents in the file, shuffled and laid end to end, cut into
// samples, and the order in which the samples are read. A large data set is drawn up to a few
// documents and samples. Throws for a run on --mock-data or on a blend of data sets.
#pragma once

#include "tools/plot/figure.h"

namespace anymesh {

Figure data_figure(const std::string& path);

}  // namespace anymesh
