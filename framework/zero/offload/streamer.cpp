#include "framework/zero/offload/streamer.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace anymesh {
namespace {

using Use = Streamer::Use;

bool is_swapped(const Streamer::Stream& s) { return s.use != Use::None && s.state.on_disk(); }
bool reads(const Streamer::Stream& s) { return s.use == Use::Read || s.use == Use::Update; }
bool writes(const Streamer::Stream& s) { return s.use == Use::Write || s.use == Use::Update; }

// Returns memory aligned for direct I/O.
torch::Tensor aligned_bytes(int64_t bytes) {
  constexpr int64_t kAlignment = SwapFile::kAlignment;
  const torch::Tensor memory = torch::empty({bytes + kAlignment}, torch::kByte);
  const auto address = reinterpret_cast<intptr_t>(memory.data_ptr());
  return memory.narrow(0, (kAlignment - address % kAlignment) % kAlignment, bytes);
}

void wait_for(std::vector<std::future<void>>& pending) {
  for (std::future<void>& transfer : pending) transfer.get();
  pending.clear();
}

}  // namespace

// Block i uses half i % 2 of the buffers. Transfers run in the order in which they start, so block
// i - 1 has been written before block i + 1 is read into the same half.
void Streamer::sweep(const std::vector<Stream>& streams, int64_t numel, const Work& work) {
  const bool swapped = std::any_of(streams.begin(), streams.end(), is_swapped);
  const int64_t step = swapped ? block_ : std::max<int64_t>(numel, 1);
  std::array<std::vector<std::future<void>>, 2> pending;
  const auto block_at = [&](int64_t begin) {
    Block block{begin, std::min(begin + step, numel), {}};
    for (size_t i = 0; i < streams.size(); ++i)
      block.tensors.push_back(tensor_of(streams[i], i, begin / step % 2, begin, block.end - begin));
    return block;
  };
  const auto transfer = [&](int64_t begin, auto wanted, auto start) {
    if (begin >= numel) return;
    const Block block = block_at(begin);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (is_swapped(streams[i]) && wanted(streams[i]))
        pending[begin / step % 2].push_back((streams[i].state.*start)(begin, block.tensors[i]));
    }
  };
  transfer(0, reads, &StateTensor::start_read);
  for (int64_t begin = 0; begin < numel; begin += step) {
    transfer(begin + step, reads, &StateTensor::start_read);
    wait_for(pending[begin / step % 2]);
    const Block block = block_at(begin);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (is_swapped(streams[i]) && !reads(streams[i])) block.tensors[i].zero_();
    }
    work(block);
    transfer(begin, writes, &StateTensor::start_write);
  }
  for (auto& half : pending) wait_for(half);
}

// Returns elements [begin, begin + numel) of a stream: a view of its tensor, or a buffer for them.
torch::Tensor Streamer::tensor_of(const Stream& s, size_t stream, int64_t half, int64_t begin,
                                  int64_t numel) {
  if (s.use == Use::None || !s.state.defined()) return {};
  if (!s.state.on_disk()) return s.state.tensor().narrow(0, begin, numel);
  auto& buffers = buffers_[static_cast<size_t>(half)];
  if (stream >= buffers.size()) buffers.resize(stream + 1);
  torch::Tensor& buffer = buffers[stream];
  if (!buffer.defined()) buffer = aligned_bytes(block_ * s.state.element_size());
  return buffer.narrow(0, 0, numel * s.state.element_size()).view(s.state.dtype());
}

int64_t Streamer::allocated_bytes() const {
  int64_t bytes = 0;
  for (const auto& half : buffers_) {
    for (const torch::Tensor& buffer : half)
      bytes += buffer.defined() ? static_cast<int64_t>(buffer.storage().nbytes()) : 0;
  }
  return bytes;
}

}  // namespace anymesh
