#include "framework/checkpoint/save/remote_tensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "framework/checkpoint/torch_bridge.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

constexpr int64_t kWindow = int64_t{1} << 20;  // elements sent at a time
constexpr int64_t kDone = -1;

// Returns the index of the tensor that rank 0 wants next, or kDone.
int64_t next_of(Communicator& comm, int64_t mine) {
  const torch::Tensor next = torch::full({1}, mine, torch::kLong);
  comm.broadcast(next, 0);
  return next.item<int64_t>();
}

// Copies the window, elements [begin, ...) of a slice, to its place in the whole.
void place(const torch::Tensor& window, const ShardLayout& layout, int64_t begin,
           const torch::Tensor& whole) {
  const auto size = static_cast<int64_t>(window.element_size());
  const auto* from = static_cast<const std::byte*>(window.const_data_ptr());
  auto* to = static_cast<std::byte*>(whole.mutable_data_ptr());
  layout.for_each_run(begin, window.numel(), [&](int64_t full, int64_t shard, int64_t n) {
    std::memcpy(to + full * size, from + (shard - begin) * size, static_cast<size_t>(n * size));
  });
}

}  // namespace

struct RemoteTensors::State {
  CommPtr comm;
  std::vector<Tensor> tensors;
  int64_t current = kDone;
  torch::Tensor whole;  // the tensor `current`
  double seconds = 0;

  std::exception_ptr error;  // from the work, or from this rank's first unreadable part

  // The window is sent even if the disk fails, because the other side waits for it.
  void read_mine(const Tensor& tensor, int64_t at, const torch::Tensor& window) {
    try {
      tensor.mine.start_read(at, window).get();
    } catch (...) {
      if (!error) error = std::current_exception();
      window.zero_();
    }
  }

  void rethrow() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  void send(const Tensor& tensor) {
    const int64_t count = tensor.mine.defined() ? tensor.mine.numel() : 0;
    for (int64_t at = 0; at < count; at += kWindow) {
      const torch::Tensor window = torch::empty({std::min(kWindow, count - at)}, tensor.dtype);
      read_mine(tensor, at, window);
      comm->exchange(window, 0, {}, 0);
    }
  }

  void collect(const Tensor& tensor, const torch::Tensor& room) {
    for (const Part& part : tensor.parts) {
      for (int64_t at = 0; at < part.count; at += kWindow) {
        const torch::Tensor window = room.narrow(0, 0, std::min(kWindow, part.count - at));
        if (part.rank == comm->rank()) {
          read_mine(tensor, at, window);
        } else {
          comm->exchange({}, 0, window, part.rank);
        }
        place(window, part.layout, part.begin + at, whole);
      }
    }
    rethrow();
  }

  const torch::Tensor& get(int64_t index) {
    if (current == index) return whole;
    const Stopwatch timing(seconds);
    const Tensor& tensor = tensors[static_cast<size_t>(index)];
    // Allocates first: once told the index, the other ranks would wait for this one.
    current = kDone;
    whole.reset();  // freed before the next is allocated
    whole = torch::empty(tensor.shape, tensor.dtype);
    int64_t longest = 0;
    for (const Part& part : tensor.parts) longest = std::max(longest, part.count);
    const torch::Tensor room = torch::empty({std::min(kWindow, longest)}, tensor.dtype);
    current = next_of(*comm, index);
    collect(tensor, room);
    return whole;
  }
};

RemoteTensors::RemoteTensors(CommPtr comm) : state_(std::make_shared<State>()) {
  state_->comm = std::move(comm);
}

TensorRecord RemoteTensors::add(Tensor tensor) {
  TensorRecord record = record_of(torch::empty({0}, tensor.dtype));
  record.shape = tensor.shape;
  record.bytes = std::make_shared<ComputedBytes>(
      record.nbytes(), "a gathered tensor",
      [state = state_, index = std::ssize(state_->tensors)](uint64_t offset,
                                                            std::span<std::byte> out) {
        const auto* whole = static_cast<const std::byte*>(state->get(index).const_data_ptr());
        std::memcpy(out.data(), whole + offset, out.size());
      });
  state_->tensors.push_back(std::move(tensor));
  return record;
}

double RemoteTensors::seconds() const { return state_->seconds; }

void RemoteTensors::serve(const std::function<void()>& work) {
  Communicator& comm = *state_->comm;
  if (comm.rank() == 0) {
    try {
      work();
    } catch (...) {
      state_->error = std::current_exception();
    }
    state_->current = next_of(comm, kDone);
    state_->whole.reset();
  } else {
    for (int64_t next; (next = next_of(comm, kDone)) != kDone;)
      state_->send(state_->tensors[static_cast<size_t>(next)]);
  }
  state_->rethrow();
}

}  // namespace anymesh
