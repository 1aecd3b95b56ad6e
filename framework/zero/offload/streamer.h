#pragma once

#include <array>
#include <functional>
#include <vector>

#include "framework/zero/memory_form.h"
#include "framework/zero/offload/state_tensor.h"

namespace anymesh {

// Sweeps over state that may be larger than memory, block by block. While block i is worked on, the
// swap files' threads write block i - 1 and read block i + 1.
//
//   streamer.sweep({{master, Use::Update}, {exp_avg, Use::Read}}, n,
//                  [&](const Streamer::Block& block) {
//                    block.tensors[0].sub_(block.tensors[1]);     // elements [begin, end) of both
//                  });
//
// Each stream has two buffers, allocated on first use and kept, so memory does not grow with n. If
// all streams lie in memory there is one block: the tensors themselves.
class Streamer {
 public:
  static constexpr int64_t kBlock = kStreamBlock;

  // How `work` uses a stream's blocks. With None they are undefined. With Write they begin as zeros
  // if the stream is on disk.
  enum class Use { None, Read, Write, Update };
  struct Stream {
    StateTensor state;  // may be undefined; then its blocks are too
    Use use = Use::None;
  };
  struct Block {
    int64_t begin, end;
    std::vector<torch::Tensor> tensors;  // one per stream
  };
  using Work = std::function<void(const Block&)>;

  explicit Streamer(int64_t block = kBlock) : block_(block) {}

  // REQUIRES: streams are `numel` long. A stream has one dtype in all calls.
  void sweep(const std::vector<Stream>& streams, int64_t numel, const Work& work);

  // The bytes of all buffers.
  int64_t allocated_bytes() const;

 private:
  torch::Tensor tensor_of(const Stream& s, size_t stream, int64_t half, int64_t begin,
                          int64_t numel);

  int64_t block_;
  std::array<std::vector<torch::Tensor>, 2> buffers_;  // by half and stream, as bytes
};

}  // namespace anymesh
