#pragma once

#include <optional>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/data/dataset.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// What this rank feeds its stage with: `count` micro-batches of `rows` samples each, of the samples
// from `first` on, dealt to the dp ranks as data/batch_loader.h has it. Ranks that need no tokens
// read none. Without a seed nothing is dropped: for evaluation.
//
//   micro_batches(data, grid, 2, state.consumed_train_samples, 6, state.dropout_seed)
std::vector<MicroBatch> micro_batches(const Dataset& data, const ProcessGrid& grid, int64_t rows,
                                      int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed);

}  // namespace anymesh
