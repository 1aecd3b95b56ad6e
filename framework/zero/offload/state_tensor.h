#pragma once

#include <torch/types.h>

#include <functional>
#include <future>
#include <memory>

#include "framework/zero/offload/swap_file.h"

namespace anymesh {

// A 1-D contiguous tensor of a rank's state. It lies in memory, on any device, or, if offloaded, in
// a swap file.
//
//   auto moments = StateTensor::zeros(n, torch::kFloat, swap);    // swap null: in memory
//   moments.fill([](int64_t at, const torch::Tensor& block) { ... });   // all of it, or in blocks
//   StateTensor mine = moments.narrow(begin, count);                    // a view: no copy
//
// Copies are views of the same elements. Throws SwapFile's errors.
class StateTensor {
 public:
  StateTensor() = default;  // undefined
  StateTensor(torch::Tensor in_memory) : tensor_(std::move(in_memory)) {}
  static StateTensor zeros(int64_t numel, const torch::TensorOptions& options,
                           const std::shared_ptr<SwapFile>& swap);

  bool defined() const { return tensor_.defined() || swap_; }
  bool on_disk() const { return swap_ != nullptr; }
  int64_t numel() const { return swap_ ? numel_ : tensor_.numel(); }
  torch::Dtype dtype() const { return swap_ ? dtype_ : tensor_.scalar_type(); }
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(dtype())); }

  // The tensor itself if it is in memory, else undefined.
  const torch::Tensor& tensor() const { return tensor_; }
  StateTensor narrow(int64_t begin, int64_t numel) const;

  // Copies elements [begin, begin + numel) to `out` or from `in`, a contiguous tensor of this dtype
  // that is kept alive until the copy is done. Copies on the swap file's thread, or at once in
  // memory.
  std::future<void> start_read(int64_t begin, torch::Tensor out) const;
  std::future<void> start_write(int64_t begin, torch::Tensor in) const;
  // Reads bytes [offset, offset + out.size()) now. REQUIRES: the tensor is not on a GPU.
  void read_bytes(uint64_t offset, std::span<std::byte> out) const;

  // Sets every element: `write(at, block)` writes elements [at, at + block.numel()), block after
  // block.
  void fill(const std::function<void(int64_t at, const torch::Tensor& block)>& write) const;

 private:
  std::future<void> start(bool writes, int64_t begin, torch::Tensor other) const;

  torch::Tensor tensor_;
  std::shared_ptr<SwapFile> swap_;
  uint64_t offset_ = 0;  // in the swap file, in bytes
  int64_t numel_ = 0;
  torch::Dtype dtype_ = torch::kFloat;
};

}  // namespace anymesh
