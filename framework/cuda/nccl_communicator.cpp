#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <atomic>
#include <exception>
#include <map>
#include <numeric>
#include <stdexcept>

#include "framework/comm/parts.h"
#include "framework/cuda/cuda.h"
#include "framework/cuda/event.h"
#include "framework/cuda/watchdog.h"

namespace anymesh {
namespace {

// Throws to the caller of a verb, and to the watchdog, which has no use for a backtrace.
void nccl_check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(result) + ": " +
                           ncclGetLastError(comm));
}
#define NCCL_CHECK(call) nccl_check((call), #call)

ncclDataType_t type_of(const torch::Tensor& t) {
  static const std::map<torch::Dtype, ncclDataType_t> kTypes = {
      {torch::kDouble, ncclFloat64},    {torch::kFloat, ncclFloat32}, {torch::kHalf, ncclFloat16},
      {torch::kBFloat16, ncclBfloat16}, {torch::kLong, ncclInt64},    {torch::kInt, ncclInt32},
      {torch::kByte, ncclUint8}};
  const auto type = kTypes.find(t.scalar_type());
  TORCH_INTERNAL_ASSERT(type != kTypes.end(), "no sums of ", t.scalar_type());
  return type->second;
}

void check_contiguous(const torch::Tensor& t, const char* verb) {
  TORCH_INTERNAL_ASSERT(!t.defined() || (t.is_contiguous() && t.is_cuda()), verb,
                        " needs contiguous tensors, all of the GPU or all of the CPU");
}

// The state that all groups of a rank share. Groups whose sums the computation waits for at once
// have one stream. The others have one each, so that a gradient's reduction or a message to a stage
// that is behind does not hold up a layer's sum. In each stream a rank's calls run in the order in
// which it makes them. This order is the same on all ranks of a group, so no two groups wait for
// each other there. Across the streams some of NCCL's kernels run at a time, which fit on a GPU
// together.
struct Transport {
  explicit Transport(std::chrono::seconds patience)
      : device(c10::cuda::current_device()), shared(new_stream()), watchdog(patience) {}
  c10::cuda::CUDAStream new_stream() const {
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device);
  }
  c10::DeviceIndex device;
  c10::cuda::CUDAStream shared;
  Watchdog watchdog;
};

// A call, shared with the watchdog.
struct Called {
  CudaEventPtr done;                  // set once
  std::atomic<bool> returned{false};  // then this
};

// A verb in a stream. It keeps its tensors until the computing stream waits for it.
class InStream final : public Pending {
 public:
  InStream(CudaEventPtr done, std::vector<torch::Tensor> tensors)
      : done_(std::move(done)), tensors_(std::move(tensors)) {}
  // Tensors that nobody waited for stay until the verb is done. An error here, while another
  // unwinds, would end the process without a message; the watchdog reports it.
  ~InStream() override {
    if (done_)
      C10_CUDA_CHECK_WARN(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(), done_->get()));
  }
  void wait() override {
    if (done_) done_->hold_back(c10::cuda::getCurrentCUDAStream());
    done_.reset();
    tensors_.clear();
  }

 private:
  CudaEventPtr done_;
  std::vector<torch::Tensor> tensors_;
};

// A sum that is converted to the dtype of `out` once it is there.
class Converted final : public Pending {
 public:
  Converted(std::unique_ptr<Pending> summed, torch::Tensor sum, torch::Tensor out)
      : summed_(std::move(summed)), sum_(std::move(sum)), out_(std::move(out)) {}
  void wait() override {
    summed_->wait();
    if (!sum_.is_same(out_)) out_.copy_(sum_);
  }

 private:
  std::unique_ptr<Pending> summed_;
  torch::Tensor sum_, out_;
};

class NcclCommunicator final : public Communicator {
 public:
  // A group is connected by its first verb on the GPU, since some have none. One of one rank needs
  // no NCCL. With `always`, as for the first group, it has one all the same, so that a run on one
  // GPU shows whether NCCL works there.
  NcclCommunicator(CommPtr host, std::string name, std::shared_ptr<Transport> transport,
                   bool always)
      : host_(std::move(host)),
        name_(std::move(name)),
        transport_(std::move(transport)),
        stream_(transport_->shared),
        always_(always) {
    if (size() == 1) connect();
  }
  ~NcclCommunicator() override {
    // While an error ends the process, a peer may be missing, and NCCL would wait for it.
    if (!comm_ || std::uncaught_exceptions() > 0) return;
    C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());  // the watchdog knows all streams' work
    transport_->watchdog.clear();
    ncclCommDestroy(comm_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  CommPtr split(int color, int key, const std::string& name) const override {
    return c10::make_intrusive<NcclCommunicator>(host_->split(color, key, name), name, transport_,
                                                 /*always=*/false);
  }

  void barrier() override { host_->barrier(); }
  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    return host_->roll_call(patience);
  }

  bool sums_in_fp32() const override { return false; }
  void run_beside() override { stream_ = transport_->new_stream(); }

  void all_reduce(torch::Tensor t, ReduceOp op) override {
    if (t.is_cpu()) return host_->all_reduce(t, op);
    if (const auto pending = start_all_reduce(t, op)) pending->wait();
  }
  std::unique_ptr<Pending> start_all_reduce(torch::Tensor t) override {
    if (t.is_cpu()) return host_->start_all_reduce(t);
    return start_all_reduce(t, ReduceOp::Sum);
  }

  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    if (out.is_cpu()) return host_->start_all_gather(out, in);
    check_contiguous(out, "all_gather");
    check_contiguous(in, "all_gather");
    TORCH_INTERNAL_ASSERT(out.numel() == in.numel() * size() && out.dtype() == in.dtype());
    if (!connect()) {
      if (out.data_ptr() != in.data_ptr()) out.view(-1).copy_(in.view(-1));
      return std::make_unique<InStream>(nullptr, std::vector<torch::Tensor>());
    }
    return run("all_gather", {out, in}, [&](cudaStream_t stream) {
      return ncclAllGather(in.data_ptr(), out.data_ptr(), in.nbytes(), ncclUint8, comm_, stream);
    });
  }

  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    if (in.is_cpu()) return host_->reduce_scatter(out, in, counts);
    if (const auto pending = start_reduce_scatter(out, in, counts)) pending->wait();
  }
  std::unique_ptr<Pending> start_reduce_scatter(torch::Tensor out, torch::Tensor in,
                                                const std::vector<int64_t>& counts) override {
    if (in.is_cpu()) return host_->start_reduce_scatter(out, in, counts);
    check_contiguous(out, "reduce_scatter");
    check_contiguous(in, "reduce_scatter");
    TORCH_INTERNAL_ASSERT(out.numel() == counts[static_cast<size_t>(rank())] &&
                          in.numel() == std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    c10::NoGradGuard no_grad;
    if (!connect()) {
      if (out.data_ptr() != in.data_ptr()) out.view(-1).copy_(in.view(-1));
      return nullptr;
    }
    const torch::Tensor sum = out.dtype() == in.dtype() ? out : at::empty_like(out, in.dtype());
    auto summed = run("reduce_scatter", {in, sum},
                      [&](cudaStream_t stream) { return reduce_scatter(sum, in, counts, stream); });
    return std::make_unique<Converted>(std::move(summed), sum, out);
  }

  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    if (in.is_cpu()) return host_->all_to_all(out, in, receive_counts, send_counts);
    check_contiguous(out, "all_to_all");
    check_contiguous(in, "all_to_all");
    check_all_to_all(out, in, starts_of(receive_counts), starts_of(send_counts), rank());
    if (!connect()) {
      out.copy_(in);
      return;
    }
    run("all_to_all", {out, in}, [&](cudaStream_t stream) {
      return grouped([&] {
        const auto width = static_cast<size_t>(in.element_size());
        auto* to = static_cast<std::byte*>(out.data_ptr());
        const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
        for (int peer = 0; peer < size(); ++peer) {
          const size_t send = width * static_cast<size_t>(send_counts[static_cast<size_t>(peer)]),
                       receive =
                           width * static_cast<size_t>(receive_counts[static_cast<size_t>(peer)]);
          if (send > 0) NCCL_CHECK(ncclSend(from, send, ncclUint8, peer, comm_, stream));
          if (receive > 0) NCCL_CHECK(ncclRecv(to, receive, ncclUint8, peer, comm_, stream));
          from += send;
          to += receive;
        }
      });
    })->wait();
  }

  void broadcast(torch::Tensor t, int root) override {
    if (t.is_cpu()) return host_->broadcast(t, root);
    if (!connect()) return;
    check_contiguous(t, "broadcast");
    run("broadcast", {t}, [&](cudaStream_t stream) {
      return ncclBroadcast(t.data_ptr(), t.data_ptr(), t.nbytes(), ncclUint8, root, comm_, stream);
    })->wait();
  }

  // NCCL connects two ranks at their first message, and both must be in the same kind of call then.
  void connect_neighbours() override {
    if (!connect()) return;
    const torch::Tensor bytes =
        at::zeros({4}, torch::dtype(torch::kByte).device(torch::kCUDA, transport_->device));
    run("connect_neighbours", {bytes}, [&](cudaStream_t stream) {
      return grouped([&] {
        auto* at = bytes.data_ptr<uint8_t>();
        for (const int step : {size() - 1, 1}) {
          const int peer = (rank() + step) % size();
          NCCL_CHECK(ncclSend(at, 1, ncclUint8, peer, comm_, stream));
          NCCL_CHECK(ncclRecv(at + 1, 1, ncclUint8, peer, comm_, stream));
          at += 2;
        }
      });
    })->wait();
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    std::vector<torch::Tensor> tensors;
    for (const auto* messages : {&sends, &receives})
      for (const Message& message : *messages) tensors.push_back(message.tensor);
    if (tensors.empty() || tensors[0].is_cpu()) return host_->start_exchange(sends, receives);
    for (const torch::Tensor& tensor : tensors) check_contiguous(tensor, "exchange");
    TORCH_INTERNAL_ASSERT(comm_, "an exchange in a group of one rank");
    return run("exchange", tensors, [&](cudaStream_t stream) {
      return grouped([&] {
        for (const auto& [t, to] : sends)
          NCCL_CHECK(ncclSend(t.data_ptr(), t.nbytes(), ncclUint8, to, comm_, stream));
        for (const auto& [t, from] : receives)
          NCCL_CHECK(ncclRecv(t.data_ptr(), t.nbytes(), ncclUint8, from, comm_, stream));
      });
    });
  }

 private:
  // Null in a group of one rank.
  std::unique_ptr<Pending> start_all_reduce(const torch::Tensor& t, ReduceOp op) {
    if (!connect()) return nullptr;
    check_contiguous(t, "all_reduce");
    return run("all_reduce", {t}, [&](cudaStream_t stream) {
      return ncclAllReduce(t.data_ptr(), t.data_ptr(), static_cast<size_t>(t.numel()), type_of(t),
                           op == ReduceOp::Sum ? ncclSum : ncclMax, comm_, stream);
    });
  }

  std::string label(const char* verb) const {
    return "NCCL: rank " + std::to_string(rank()) + " of the group " + name_ + ": " + verb;
  }

  // Makes the group's own communicator, if it has none yet: by the first verb, which all members
  // call. Returns whether there is one.
  bool connect() {
    if (comm_ || (size() == 1 && !always_)) return comm_ != nullptr;
    const torch::Tensor id = torch::zeros({sizeof(ncclUniqueId)}, torch::kByte);
    auto* unique = reinterpret_cast<ncclUniqueId*>(id.data_ptr());
    if (rank() == 0) NCCL_CHECK(ncclGetUniqueId(unique));
    host_->broadcast(id, 0);
    const auto made = std::make_shared<std::atomic<bool>>(false);
    transport_->watchdog.watch(label("init"), [made] { return made->load(); });
    NCCL_CHECK(ncclCommInitRank(&comm_, size(), *unique, rank()));
    *made = true;
    return true;
  }

  template <class Calls>
  static ncclResult_t grouped(const Calls& calls) {
    NCCL_CHECK(ncclGroupStart());
    calls();
    return ncclGroupEnd();
  }

  // Parts of different sizes take one reduction each, to the rank that gets the part.
  ncclResult_t reduce_scatter(const torch::Tensor& sum, const torch::Tensor& terms,
                              const std::vector<int64_t>& counts, cudaStream_t stream) {
    if (std::equal(counts.begin() + 1, counts.end(), counts.begin()))
      return ncclReduceScatter(terms.data_ptr(), sum.data_ptr(), static_cast<size_t>(counts[0]),
                               type_of(sum), ncclSum, comm_, stream);
    return grouped([&] {
      const auto* part = static_cast<const std::byte*>(terms.const_data_ptr());
      for (int root = 0; root < size(); ++root) {
        const int64_t count = counts[static_cast<size_t>(root)];
        NCCL_CHECK(ncclReduce(part, sum.data_ptr(), static_cast<size_t>(count), type_of(sum),
                              ncclSum, root, comm_, stream));
        part += count * terms.element_size();
      }
    });
  }

  // Makes `call` in the group's stream, after all work in the current one, and watches it. The
  // current stream waits for it when the result is waited for or destroyed.
  template <class Call>
  std::unique_ptr<Pending> run(const char* verb, std::vector<torch::Tensor> tensors,
                               const Call& call) {
    CudaEvent(c10::cuda::getCurrentCUDAStream()).hold_back(stream_);
    // Watched from here on, because the call itself may wait for a peer to connect.
    const auto called = std::make_shared<Called>();
    transport_->watchdog.watch(label(verb), [called, comm = comm_, device = transport_->device] {
      if (!called->returned) return false;
      c10::cuda::set_device(device);
      ncclResult_t error = ncclSuccess;
      NCCL_CHECK(ncclCommGetAsyncError(comm, &error));
      nccl_check(error, "failed on the GPU", comm);
      return called->done->is_done();
    });
    nccl_check(call(stream_), label(verb).c_str(), comm_);
    called->done = std::make_shared<const CudaEvent>(stream_);
    called->returned = true;
    return std::make_unique<InStream>(called->done, std::move(tensors));
  }

  CommPtr host_;
  std::string name_;
  std::shared_ptr<Transport> transport_;
  c10::cuda::CUDAStream stream_;
  bool always_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

CommPtr nccl_communicator(CommPtr host, std::chrono::seconds patience) {
  return c10::make_intrusive<NcclCommunicator>(std::move(host), "world",
                                               std::make_shared<Transport>(patience),
                                               /*always=*/true);
}

}  // namespace anymesh
