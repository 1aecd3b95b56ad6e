#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace anymesh {

// A group of ranks and its collectives on tensors. All members call the same verbs in the same
// order.
//
//   comm->all_reduce(gradient);                    // in place; every rank then holds the same bits
//   comm->exchange(down, next, up, previous);      // one fused send and receive
//
// Every sum is folded in rank order, ((x0 + x1) + x2) + ..., whatever the verb, the size of the
// tensor and where it is cut. An element therefore has the same bits after reduce_scatter and
// all_reduce. bf16 and fp16 are summed in fp32 and rounded once. In a group of one rank every verb
// is a no-op (or a copy), so callers never ask for the size.
//
// This holds between CPUs, by MPI (mpi_job.h) or threads (thread_job.h). framework/cuda/cuda.h says
// how sums between GPUs differ.
//
// Tensors must be contiguous. Transport errors throw. The class is a torch::CustomClassHolder, so
// that an autograd function can keep its group in `saved_data`.
enum class ReduceOp { Sum, Max };

// A verb in progress.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

// A tensor on its way to or from another rank.
struct Message {
  torch::Tensor tensor;
  int peer;
};

class Communicator : public torch::CustomClassHolder {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Ranks of equal color form a group, ordered by key. Errors mention its name.
  virtual c10::intrusive_ptr<Communicator> split(int color, int key,
                                                 const std::string& name = "(unnamed)") const = 0;

  // The same where each rank knows the others' colors, as a rank without the others must
  // (lone_job.h). Members keep their order.
  virtual c10::intrusive_ptr<Communicator> split_by(const std::function<int(int rank)>& color_of,
                                                    const std::string& name) const {
    return split(color_of(rank()), rank(), name);
  }

  // Whether bf16 and fp16 travel as they are and are summed in fp32. Else each addition rounds.
  virtual bool sums_in_fp32() const { return true; }

  // From here on the group's verbs run beside those of other groups: on a GPU, in a stream of their
  // own. Groups whose sums the computation needs at once share one, in the order of the calls.
  virtual void run_beside() {}

  virtual void all_reduce(torch::Tensor t, ReduceOp op = ReduceOp::Sum) = 0;
  // Starts the sum beside other work: `t` may not be touched before wait(). A transport that cannot
  // do so has done it on return, which is null then.
  virtual std::unique_ptr<Pending> start_all_reduce(torch::Tensor t) {
    all_reduce(t);
    return nullptr;
  }
  // out [size * n] <- in [n] of every rank, in rank order. `in` may be this rank's part of `out`.
  void all_gather(torch::Tensor out, torch::Tensor in) { start_all_gather(out, in)->wait(); }
  // Starts the same without waiting for it. Neither tensor may be touched before wait().
  virtual std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) = 0;
  // out [n] <- the sum over ranks of part `rank()` of in [size * n]; `out` may be that part of
  // `in`.
  void reduce_scatter(torch::Tensor out, torch::Tensor in) {
    reduce_scatter(out, in, std::vector<int64_t>(static_cast<size_t>(size()), out.numel()));
  }
  // The same with parts of different sizes. `out` may have another dtype than `in`; where
  // sums_in_fp32(), the sum is rounded once, to the dtype of `out`.
  virtual void reduce_scatter(torch::Tensor out, torch::Tensor in,
                              const std::vector<int64_t>& counts) = 0;
  // Starts the same, as start_all_reduce() does.
  virtual std::unique_ptr<Pending> start_reduce_scatter(torch::Tensor out, torch::Tensor in,
                                                        const std::vector<int64_t>& counts) {
    reduce_scatter(out, in, counts);
    return nullptr;
  }
  // Sends the next send_counts[r] elements of `in` to each rank r, and receives receive_counts[r]
  // elements from it, into `out`. Both are laid out in rank order. A rank may send itself some.
  virtual void all_to_all(torch::Tensor out, torch::Tensor in,
                          const std::vector<int64_t>& receive_counts,
                          const std::vector<int64_t>& send_counts) = 0;
  virtual void broadcast(torch::Tensor t, int root) = 0;
  // Sends `send` to rank `to` and receives into `recv` from rank `from`; an undefined tensor means
  // no such half.
  void exchange(torch::Tensor send, int to, torch::Tensor recv, int from) {
    start_exchange(send.defined() ? std::vector<Message>{{send, to}} : std::vector<Message>(),
                   recv.defined() ? std::vector<Message>{{recv, from}} : std::vector<Message>())
        ->wait();
  }
  // Starts to send and to receive these tensors, all at once. Messages from one rank to another
  // arrive in the order in which they are sent. No tensor may be touched before wait().
  virtual std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                                  const std::vector<Message>& receives) = 0;
  // Call this once before the first exchange with neighbours, rank - 1 and rank + 1, of which the
  // last and the first rank are one another's. A transport that connects at first use does so here,
  // where both sides take part alike. Collective.
  virtual void connect_neighbours() {}
  virtual void barrier() = 0;
  // A barrier that does not wait for ever. Returns the ranks that have not come within `patience`,
  // ascending; none if all have. If it returns some, the group must not be used any more.
  virtual std::vector<int> roll_call(std::chrono::milliseconds patience) = 0;
};

using CommPtr = c10::intrusive_ptr<Communicator>;

}  // namespace anymesh
