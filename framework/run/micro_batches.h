#pragma once

#include <optional>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/run/sample_source.h"

namespace anymesh {

// Returns `count` micro-batches of `rows` samples each for this rank's stage. Samples from `first`
// on are dealt to the dp ranks as in data/batch_loader.h. Stages between the first and the last
// read no data, unless `all_stages` do. Without a seed, as in evaluation, there is no dropout.
// Throws if the data set does not give `rows` rows.
//
//   micro_batches(data, grid, 2, state.consumed_train_samples, 6, state.dropout_seed)
std::vector<MicroBatch> micro_batches(const SampleSource& data, const ProcessGrid& grid,
                                      int64_t rows, int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed,
                                      bool all_stages = false);
// The two halves of it. The first may run on a thread of its own; its tensors are the host's. The
// second makes one copy of all inputs and one of all labels, which the host does not wait for.
std::vector<MicroBatch> read_micro_batches(const SampleSource& data, const ProcessGrid& grid,
                                           int64_t rows, int64_t first, int64_t count,
                                           std::optional<uint64_t> dropout_seed,
                                           bool all_stages = false);
void move_to(torch::Device device, std::vector<MicroBatch>& batches);

// The same of tokens.
std::vector<MicroBatch> micro_batches(const Dataset& data, const ProcessGrid& grid, int64_t rows,
                                      int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed,
                                      bool all_stages = false);

}  // namespace anymesh
