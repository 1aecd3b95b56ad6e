#include "tests/pretend/stream_communicator.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "framework/comm/staged_communicator.h"
#include "tests/pretend/device.h"

namespace anymesh::pretend {
namespace {

const c10::Device kOwner(c10::DeviceType::PrivateUse1, 0);

c10::Stream current() { return c10::impl::VirtualGuardImpl(kOwner.type()).getStream(kOwner); }

// Keeps the verb's tensors until the computation waits for it.
class InStream final : public Pending {
 public:
  InStream(c10::Event done, std::vector<torch::Tensor> tensors)
      : done_(std::move(done)), tensors_(std::move(tensors)) {}
  ~InStream() override { done_.block(current()); }
  void wait() override { done_.block(current()); }

 private:
  c10::Event done_;
  std::vector<torch::Tensor> tensors_;
};

class StreamCommunicator final : public Communicator {
 public:
  StreamCommunicator(CommPtr host, c10::Stream shared)
      : host_(std::move(host)),
        staged_(staged_communicator(host_)),
        shared_(shared),
        stream_(shared) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  CommPtr split(int color, int key, const std::string& name) const override {
    return c10::make_intrusive<StreamCommunicator>(host_->split(color, key, name), shared_);
  }
  bool sums_in_fp32() const override { return false; }  // as NCCL, though it does
  void run_beside() override {
    stream_ = c10::impl::VirtualGuardImpl(kOwner.type()).getStreamFromGlobalPool(kOwner);
  }
  void connect_neighbours() override { connected_ = true; }
  void barrier() override { host_->barrier(); }
  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    return host_->roll_call(patience);
  }

  void all_reduce(torch::Tensor t, ReduceOp op) override {
    if (t.is_cpu()) return host_->all_reduce(t, op);
    run({t}, {t}, [&] { staged_->all_reduce(t, op); })->wait();
  }
  std::unique_ptr<Pending> start_all_reduce(torch::Tensor t) override {
    if (t.is_cpu()) return host_->start_all_reduce(t);
    return run({t}, {t}, [&] { staged_->all_reduce(t, ReduceOp::Sum); });
  }
  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    if (out.is_cpu()) return host_->start_all_gather(out, in);
    return run({in}, {out}, [&] { staged_->all_gather(out, in); });
  }
  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    if (in.is_cpu()) return host_->reduce_scatter(out, in, counts);
    run({in}, {out}, [&] { staged_->reduce_scatter(out, in, counts); })->wait();
  }
  std::unique_ptr<Pending> start_reduce_scatter(torch::Tensor out, torch::Tensor in,
                                                const std::vector<int64_t>& counts) override {
    if (in.is_cpu()) return host_->start_reduce_scatter(out, in, counts);
    return run({in}, {out}, [&] { staged_->reduce_scatter(out, in, counts); });
  }
  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    if (in.is_cpu()) return host_->all_to_all(out, in, receive_counts, send_counts);
    run({in}, {out}, [&] { staged_->all_to_all(out, in, receive_counts, send_counts); })->wait();
  }
  void broadcast(torch::Tensor t, int root) override {
    if (t.is_cpu()) return host_->broadcast(t, root);
    run({t}, {t}, [&] { staged_->broadcast(t, root); })->wait();
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    std::vector<torch::Tensor> sent, received;
    for (const Message& message : sends) sent.push_back(message.tensor);
    for (const Message& message : receives) received.push_back(message.tensor);
    if (sent.empty() && received.empty()) return host_->start_exchange(sends, receives);
    if ((sent.empty() ? received : sent)[0].is_cpu()) return host_->start_exchange(sends, receives);
    TORCH_CHECK(connected_, "exchange() before connect_neighbours(): NCCL would hang");
    return run(sent, received, [&] { staged_->start_exchange(sends, receives)->wait(); });
  }

 private:
  std::unique_ptr<Pending> run(std::vector<torch::Tensor> reads,
                               const std::vector<torch::Tensor>& writes,
                               const std::function<void()>& work) {
    c10::Event before(kOwner.type()), done(kOwner.type());
    before.record(current());
    before.block(stream_);
    in_stream(stream_, reads, writes, work);
    done.record(stream_);
    reads.insert(reads.end(), writes.begin(), writes.end());
    return std::make_unique<InStream>(std::move(done), std::move(reads));
  }

  CommPtr host_, staged_;
  c10::Stream shared_, stream_;
  bool connected_ = false;
};

}  // namespace

CommPtr stream_communicator(CommPtr host) {
  const c10::impl::VirtualGuardImpl device(kOwner.type());
  return c10::make_intrusive<StreamCommunicator>(std::move(host),
                                                 device.getStreamFromGlobalPool(kOwner));
}

}  // namespace anymesh::pretend
