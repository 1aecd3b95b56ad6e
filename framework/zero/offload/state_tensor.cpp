#include "framework/zero/offload/state_tensor.h"

#include <ATen/Functions.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace anymesh {
namespace {

// Elements that fill() has in memory at a time.
constexpr int64_t kBlock = int64_t{1} << 20;

std::span<std::byte> bytes_of(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.is_contiguous() && t.device().is_cpu());
  return {static_cast<std::byte*>(t.data_ptr()), t.nbytes()};
}

// Maps new memory instead of using the heap. There, lasting allocations between two such blocks
// would take the place of the first, so each block would need new memory.
torch::Tensor block_of(int64_t numel, torch::Dtype dtype) {
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  if (bytes == 0) return torch::empty({0}, dtype);
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return torch::from_blob(
      memory, {numel}, [bytes](void* mapped) { munmap(mapped, bytes); }, dtype);
}

}  // namespace

StateTensor StateTensor::zeros(int64_t numel, const torch::TensorOptions& options,
                               const std::shared_ptr<SwapFile>& swap) {
  if (!swap) return torch::zeros({numel}, options);
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  StateTensor state;
  state.swap_ = swap;
  state.offset_ = swap->reserve(static_cast<uint64_t>(numel) * c10::elementSize(dtype));
  state.numel_ = numel;
  state.dtype_ = dtype;
  return state;
}

StateTensor StateTensor::narrow(int64_t begin, int64_t numel) const {
  if (!swap_) return tensor_.narrow(0, begin, numel);
  TORCH_INTERNAL_ASSERT(begin >= 0 && numel >= 0 && begin + numel <= numel_);
  StateTensor part = *this;
  part.offset_ += static_cast<uint64_t>(begin * element_size());
  part.numel_ = numel;
  return part;
}

std::future<void> StateTensor::start_read(int64_t begin, torch::Tensor out) const {
  return start(false, begin, std::move(out));
}

std::future<void> StateTensor::start_write(int64_t begin, torch::Tensor in) const {
  return start(true, begin, std::move(in));
}

// A task releases its tensor before it counts as done, so the thread that waits for it is the one
// that frees the tensor.
std::future<void> StateTensor::start(bool writes, int64_t begin, torch::Tensor other) const {
  const StateTensor part = narrow(begin, other.numel());
  TORCH_INTERNAL_ASSERT(dtype() == other.scalar_type());
  if (!swap_) {
    (writes ? part.tensor_ : other).copy_(writes ? other : part.tensor_);
    std::promise<void> done;
    done.set_value();
    return done.get_future();
  }
  return swap_->start(
      [swap = swap_.get(), writes, offset = part.offset_, other = std::move(other)]() mutable {
        const torch::Tensor tensor = std::move(other);
        if (writes) return swap->write(offset, bytes_of(tensor));
        swap->read(offset, bytes_of(tensor));
      });
}

void StateTensor::read_bytes(uint64_t offset, std::span<std::byte> out) const {
  if (swap_) return swap_->read(offset_ + offset, out);
  std::memcpy(out.data(), bytes_of(tensor_).data() + offset, out.size());
}

void StateTensor::fill(
    const std::function<void(int64_t at, const torch::Tensor& block)>& write) const {
  if (!swap_) return write(0, tensor_);
  const torch::Tensor blocks = block_of(std::min(kBlock, numel_), dtype_);
  for (int64_t at = 0; at < numel_; at += kBlock) {
    const torch::Tensor block = blocks.narrow(0, 0, std::min(kBlock, numel_ - at));
    write(at, block);
    swap_->write(offset_ + static_cast<uint64_t>(at * element_size()), bytes_of(block));
  }
}

}  // namespace anymesh
