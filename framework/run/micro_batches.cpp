#include "framework/run/micro_batches.h"

#include <c10/util/StringUtil.h>

#include "framework/data/batch_loader.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

torch::Tensor checked(const torch::Tensor& tensor, int64_t rows, const char* name) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != rows)
    throw_error("the data set gave ", name, " of shape ",
                tensor.defined() ? c10::str(tensor.sizes()) : "none", ", expected ", rows,
                " rows for as many samples (--micro-batch-size)");
  return tensor;
}

}  // namespace

std::vector<MicroBatch> micro_batches(const SampleSource& data, const ProcessGrid& grid,
                                      int64_t rows, int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed, bool all_stages) {
  const BatchSlice slice{
      .micro_batch_size = rows, .dp_size = grid.topology.dp_size, .dp_rank = grid.coord.dp};
  const bool reads = all_stages || grid.is_first_stage() || grid.is_last_stage();
  std::vector<MicroBatch> batches(static_cast<size_t>(count));
  for (int64_t m = 0; m < count; ++m) {
    MicroBatch& batch = batches[static_cast<size_t>(m)];
    const std::vector<int64_t> samples = slice.samples(first, m);
    if (reads) {
      const MicroBatch read = data.batch(samples);
      batch.inputs = checked(read.inputs, rows, "inputs").to(grid.device);
      batch.labels = checked(read.labels, rows, "labels").to(grid.device);
    }
    if (dropout_seed) batch.dropout = {.seed = *dropout_seed, .samples = samples};
  }
  return batches;
}

std::vector<MicroBatch> micro_batches(const Dataset& data, const ProcessGrid& grid, int64_t rows,
                                      int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed, bool all_stages) {
  const TokenSource tokens(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &data));
  return micro_batches(tokens, grid, rows, first, count, dropout_seed, all_stages);
}

}  // namespace anymesh
