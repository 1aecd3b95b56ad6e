// CUDA C++ for framework/kernels/cuda/simt.h where no nvcc compiles it, as far as our kernels use
// it, for one thread of the CPU. Blocks run one after the other. The threads of a block are fibers
// that run until they wait for each other. A warp runs as far as it can before the next one, so
// that a missing wait shows. A wait that some threads never reach is an error.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // of the block that runs

using __half = c10::Half;
using __nv_bfloat16 = c10::BFloat16;

namespace simt {

struct Index {
  unsigned x = 0;
};
inline Index thread_index, block_index, block_size, grid_size;

class Block {
 public:
  static constexpr int kWarp = 32;

  // Runs body() on each of the threads, to its end.
  Block(int threads, const std::function<void()>& body)
      : body_(body), fibers_(static_cast<size_t>(threads)), slots_(fibers_.size()) {
    running_ = this;
    warps_.resize((fibers_.size() + kWarp - 1) / kWarp);
    while (stacks_.size() < fibers_.size()) stacks_.emplace_back(new char[kStack]);
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[i];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks_[i].get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, enter, 0);
    }
    for (bool backwards = false; done_ < fibers_.size(); backwards = !backwards) {
      bool moved = false;
      for (size_t i = 0; i < warps_.size(); ++i)
        moved |= run_warp(backwards ? warps_.size() - 1 - i : i);
      if (!moved) throw std::logic_error("threads of a block wait for others that never come");
    }
  }

  // Waits until all threads of the block, or of this one's warp, have come here.
  void wait_for_block() { wait(block_, fibers_.size()); }
  void wait_for_warp() {
    const size_t warp = thread_index.x / kWarp;
    wait(warps_[warp], std::min<size_t>(kWarp, fibers_.size() - warp * kWarp));
  }
  uint64_t& slot(unsigned thread) { return slots_.at(thread); }
  static Block& running() { return *running_; }

 private:
  static constexpr size_t kStack = 1 << 15;
  struct Fiber {
    ucontext_t context;
    bool done = false;
  };
  struct Barrier {
    size_t arrived = 0, passed = 0;
  };

  static void enter() {
    Block& block = running();
    block.body_();
    block.fibers_[thread_index.x].done = block.moved_ = true;
    ++block.done_;
  }
  // Runs the warp as far as it gets without the others. Data that they still had to read is
  // overwritten.
  bool run_warp(size_t warp) {
    bool moved = false;
    const size_t end = std::min((warp + 1) * kWarp, fibers_.size());
    do {
      moved_ = false;
      for (size_t i = warp * kWarp; i < end; ++i) {
        if (fibers_[i].done) continue;
        thread_index.x = static_cast<unsigned>(i);
        swapcontext(&scheduler_, &fibers_[i].context);
      }
      moved |= moved_;
    } while (moved_);
    return moved;
  }
  void wait(Barrier& barrier, size_t members) {
    const size_t turn = barrier.passed;
    if (++barrier.arrived == members) {
      barrier.arrived = 0;
      ++barrier.passed;
    }
    const unsigned me = thread_index.x;
    while (barrier.passed == turn) swapcontext(&fibers_[me].context, &scheduler_);
    moved_ = true;
  }

  inline static Block* running_ = nullptr;
  inline static std::vector<std::unique_ptr<char[]>> stacks_;  // reused by the blocks
  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::vector<uint64_t> slots_;  // values that the threads show their warp
  std::vector<Barrier> warps_;
  Barrier block_;
  ucontext_t scheduler_;
  size_t done_ = 0;
  bool moved_ = false;  // a thread passed a barrier or ended, since a warp's turn began
};

}  // namespace simt

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define blockDim simt::block_size
#define gridDim simt::grid_size

inline void __syncthreads() { simt::Block::running().wait_for_block(); }

template <class T>
T __shfl_xor_sync(unsigned, T x, int lanes) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  simt::Block& block = simt::Block::running();
  std::memcpy(&block.slot(threadIdx.x), &x, sizeof x);
  block.wait_for_warp();
  std::memcpy(&x, &block.slot(threadIdx.x ^ static_cast<unsigned>(lanes)), sizeof x);
  block.wait_for_warp();
  return x;
}

namespace anymesh {

template <class... Parameters, class... Arguments>
void launch(const char*, void (*kernel)(Parameters...), int64_t blocks, int threads, CUstream_st*,
            Arguments... arguments) {
  simt::block_size.x = static_cast<unsigned>(threads);
  simt::grid_size.x = static_cast<unsigned>(blocks);
  const std::function<void()> body = [&] { kernel(arguments...); };
  for (int64_t i = 0; i < blocks; ++i) {
    simt::block_index.x = static_cast<unsigned>(i);
    simt::Block(threads, body);
  }
}

}  // namespace anymesh
