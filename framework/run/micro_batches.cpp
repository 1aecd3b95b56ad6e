#include "framework/run/micro_batches.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

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

// Moves tensors of one shape and dtype by one copy, which the host does not wait for.
void move(const std::vector<torch::Tensor*>& tensors, torch::Device device) {
  std::vector<torch::Tensor> host;
  for (const torch::Tensor* t : tensors) host.push_back(*t);
  const bool alike = std::ranges::all_of(host, [&](const torch::Tensor& t) {
    return t.sizes() == host[0].sizes() && t.dtype() == host[0].dtype();
  });
  if (!alike) {
    for (torch::Tensor* t : tensors) *t = t->to(device);
    return;
  }
  std::vector<int64_t> shape = host[0].sizes().vec();
  shape.insert(shape.begin(), std::ssize(host));
  torch::Tensor pinned = at::empty(shape, host[0].options().pinned_memory(true));
  at::stack_out(pinned, host);
  const torch::Tensor moved = pinned.to(device, /*non_blocking=*/true);
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = moved[static_cast<int64_t>(i)];
}

}  // namespace

std::vector<MicroBatch> read_micro_batches(const SampleSource& data, const ProcessGrid& grid,
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
      batch.inputs = checked(read.inputs, rows, "inputs");
      batch.labels = checked(read.labels, rows, "labels");
    }
    if (dropout_seed) batch.dropout = {.seed = *dropout_seed, .samples = samples};
  }
  return batches;
}

void move_to(torch::Device device, std::vector<MicroBatch>& batches) {
  if (device.is_cpu() || batches.empty() || !batches[0].inputs.defined()) return;
  std::vector<torch::Tensor*> inputs, labels;
  for (MicroBatch& batch : batches) {
    inputs.push_back(&batch.inputs);
    labels.push_back(&batch.labels);
  }
  move(inputs, device);
  move(labels, device);
}

std::vector<MicroBatch> micro_batches(const SampleSource& data, const ProcessGrid& grid,
                                      int64_t rows, int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed, bool all_stages) {
  std::vector<MicroBatch> batches =
      read_micro_batches(data, grid, rows, first, count, dropout_seed, all_stages);
  move_to(grid.device, batches);
  return batches;
}

std::vector<MicroBatch> micro_batches(const Dataset& data, const ProcessGrid& grid, int64_t rows,
                                      int64_t first, int64_t count,
                                      std::optional<uint64_t> dropout_seed, bool all_stages) {
  const TokenSource tokens(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &data));
  return micro_batches(tokens, grid, rows, first, count, dropout_seed, all_stages);
}

}  // namespace anymesh
