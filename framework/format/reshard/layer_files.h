#pragma once

#include <string>
#include <utility>
#include <vector>

#include "framework/format/reshard/rank_model.h"

namespace anymesh {

// Returns a pipeline's layer files, as name and contents, in the precision `to`. Their names, keys
// and order stay: those are of the model's code. Weights are rounded from the masters in `ranks`,
// which are of the source's tp and pp. Buffers stay as they are.
std::vector<std::pair<std::string, Value>> recast_layer_files(const ShardedCheckpoint& source,
                                                              const std::vector<RankModel>& ranks,
                                                              DType to, int threads,
                                                              RecordChecksums& checks);

}  // namespace anymesh
