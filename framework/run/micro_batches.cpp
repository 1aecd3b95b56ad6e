#include "framework/run/micro_batches.h"

#include "framework/data/batch_loader.h"

namespace anymesh {

std::vector<MicroBatch> micro_batches(const Dataset& data, const ProcessGrid& grid, int64_t rows,
                                      int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed, bool all_stages) {
  const BatchSlice slice{
      .micro_batch_size = rows, .dp_size = grid.topology.dp_size, .dp_rank = grid.coord.dp};
  const auto to_tensor = [&](const std::vector<int64_t>& values) {
    return torch::tensor(values, torch::kLong).view({rows, -1}).to(grid.device);  // [b, s]
  };
  std::vector<MicroBatch> batches(static_cast<size_t>(count));
  for (int64_t m = 0; m < count; ++m) {
    MicroBatch& batch = batches[static_cast<size_t>(m)];
    batch.dropout.seed = dropout_seed.value_or(0);
    for (int64_t row = 0; dropout_seed && row < rows; ++row)
      batch.dropout.samples.push_back(slice.sample_index(first, m, row));
    if (!all_stages && !grid.is_first_stage() && !grid.is_last_stage()) continue;
    const TokenBatch read = load_micro_batch(data, slice, first, m);
    batch.tokens = to_tensor(read.tokens);
    batch.labels = to_tensor(read.labels);
  }
  return batches;
}

}  // namespace anymesh
