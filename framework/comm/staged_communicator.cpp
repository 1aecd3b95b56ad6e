#include "framework/comm/staged_communicator.h"

#include <ATen/Functions.h>

namespace anymesh {
namespace {

// Returns the tensor that the host's group writes in place of `t`: `t` itself if it is on the host
// or undefined.
torch::Tensor room_for(const torch::Tensor& t) {
  if (!t.defined() || t.is_cpu()) return t;
  return at::empty(t.sizes(), t.options().device(torch::kCPU).pinned_memory(true));
}

// Returns the tensor that the host's group sends in place of `t`.
torch::Tensor staged(const torch::Tensor& t) {
  torch::Tensor host = room_for(t);
  if (host.is_same(t)) return host;
  TORCH_INTERNAL_ASSERT(t.is_contiguous());
  return host.copy_(t);
}

void unstage(const torch::Tensor& host, torch::Tensor t) {
  if (!host.is_same(t)) t.copy_(host);
}

using Tensors = std::vector<torch::Tensor>;

class Unstaging final : public Pending {
 public:
  // `hosts` receive in place of `outs`.
  Unstaging(std::unique_ptr<Pending> pending, Tensors sent, Tensors hosts, Tensors outs)
      : pending_(std::move(pending)),
        sent_(std::move(sent)),
        hosts_(std::move(hosts)),
        outs_(std::move(outs)) {}
  ~Unstaging() override { pending_.reset(); }  // before its memory goes
  void wait() override {
    c10::NoGradGuard no_grad;
    pending_->wait();
    for (size_t i = 0; i < outs_.size(); ++i) unstage(hosts_[i], outs_[i]);
  }

 private:
  std::unique_ptr<Pending> pending_;
  Tensors sent_, hosts_, outs_;
};

class StagedCommunicator final : public Communicator {
 public:
  explicit StagedCommunicator(CommPtr host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  CommPtr split(int color, int key, const std::string& name) const override {
    return c10::make_intrusive<StagedCommunicator>(host_->split(color, key, name));
  }
  void barrier() override { host_->barrier(); }
  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    return host_->roll_call(patience);
  }

  void all_reduce(torch::Tensor t, ReduceOp op) override {
    in_place(t, [&](const torch::Tensor& host) { host_->all_reduce(host, op); });
  }
  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    if (out.is_cpu()) return host_->start_all_gather(out, in);
    c10::NoGradGuard no_grad;
    const torch::Tensor mine = staged(in), all = room_for(out);
    return std::make_unique<Unstaging>(host_->start_all_gather(all, mine), Tensors{mine},
                                       Tensors{all}, Tensors{out});
  }
  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    c10::NoGradGuard no_grad;
    const torch::Tensor sum = room_for(out);
    host_->reduce_scatter(sum, staged(in), counts);
    unstage(sum, out);
  }
  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    c10::NoGradGuard no_grad;
    const torch::Tensor received = room_for(out);
    host_->all_to_all(received, staged(in), receive_counts, send_counts);
    unstage(received, out);
  }
  void broadcast(torch::Tensor t, int root) override {
    in_place(t, [&](const torch::Tensor& host) { host_->broadcast(host, root); });
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    c10::NoGradGuard no_grad;
    std::vector<Message> sent, received;
    Tensors from, hosts, outs;
    for (const auto& [tensor, to] : sends)
      from.push_back(sent.emplace_back(Message{staged(tensor), to}).tensor);
    for (const auto& [tensor, peer] : receives) {
      hosts.push_back(received.emplace_back(Message{room_for(tensor), peer}).tensor);
      outs.push_back(tensor);
    }
    return std::make_unique<Unstaging>(host_->start_exchange(sent, received), std::move(from),
                                       std::move(hosts), std::move(outs));
  }

 private:
  template <class Verb>
  void in_place(const torch::Tensor& t, const Verb& verb) {
    if (size() == 1) return;
    c10::NoGradGuard no_grad;
    const torch::Tensor host = staged(t);
    verb(host);
    unstage(host, t);
  }

  CommPtr host_;
};

}  // namespace

CommPtr staged_communicator(CommPtr host) {
  return c10::make_intrusive<StagedCommunicator>(std::move(host));
}

}  // namespace anymesh
