#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "framework/comm/fold.h"
#include "framework/comm/host_tensor.h"
#include "framework/comm/mpi_requests.h"
#include "framework/comm/parts.h"

namespace anymesh {
namespace {

// Elements of each rank's part sent at a time. Bounds the staging memory and keeps MPI's int counts
// safe.
constexpr int64_t kBucket = int64_t{1} << 20;

// Up to so many ranks, each one sends to each other, so that a late one is known by its messages.
// With more, MPI passes small gathers on, since a copy needs no order, and any rank may be late.
constexpr int kMostPairs = 16;

// The tag of roll call messages. Tensors have tag 0.
constexpr int kRollCallTag = 1;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, bool owned, std::shared_ptr<const Patience> patience)
      : comm_(comm), owned_(owned), patience_(std::move(patience)) {
    MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
    MPI_CHECK(MPI_Comm_size(comm_, &size_));
  }
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && !finalized) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  CommPtr split(int color, int key, const std::string& name) const override {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_split(comm_, color, key, &part));
    MPI_CHECK(MPI_Comm_set_name(part, name.c_str()));
    return c10::make_intrusive<MpiCommunicator>(part, /*owned=*/true, patience_);
  }

  void all_reduce(torch::Tensor t, ReduceOp op) override {
    if (size_ == 1 || t.numel() == 0) return;
    check_contiguous(t, "all_reduce");
    torch::Tensor flat = t.view(-1);
    for (int64_t begin = 0; begin < flat.numel(); begin += kBucket * size_) {
      all_reduce_bucket(flat.narrow(0, begin, std::min(kBucket * size_, flat.numel() - begin)), op);
    }
  }

  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    check_contiguous(out, "all_gather");
    check_contiguous(in, "all_gather");
    TORCH_INTERNAL_ASSERT(out.numel() == in.numel() * size_ && out.dtype() == in.dtype());
    const int64_t n = in.numel();
    std::byte* mine = bytes_at(out, rank_ * n);
    if (mine != bytes_at(in)) std::copy_n(bytes_at(in), in.nbytes(), mine);
    if (size_ > kMostPairs && in.nbytes() <= kBucket) {
      auto requests = std::make_unique<Requests>(comm_, patience_, "all_gather");
      MPI_CHECK(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, bytes_at(out),
                               static_cast<int>(in.nbytes()), MPI_BYTE, comm_, requests->add()));
      return requests;
    }
    return start_all_to_all(
        "all_gather", in, [](int) { return int64_t{0}; }, out, [&](int r) { return r * n; },
        [&](int) { return n; }, [&](int) { return n; });
  }

  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    check_contiguous(out, "reduce_scatter");
    check_contiguous(in, "reduce_scatter");
    const std::vector<int64_t> starts = starts_of(counts);
    const auto start = [&](int r) { return starts[static_cast<size_t>(r)]; };
    const auto count = [&](int r) { return counts[static_cast<size_t>(r)]; };
    TORCH_INTERNAL_ASSERT(in.numel() == starts.back() && out.numel() == count(rank_));
    const torch::Tensor flat_in = in.view(-1);
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    for (int64_t begin = 0; begin < longest; begin += kBucket) {
      const auto part = [&](int r) { return std::clamp<int64_t>(count(r) - begin, 0, kBucket); };
      const int64_t mine = part(rank_);
      const torch::Tensor parts = torch::empty({size_, mine}, in.options());
      start_all_to_all(
          "reduce_scatter", flat_in, [&](int r) { return start(r) + begin; }, parts,
          [&](int r) { return r * mine; }, part, [&](int) { return mine; })
          ->wait();
      fold(rows(parts, bytes_at(in, start(rank_) + begin)), mine, in.scalar_type(), ReduceOp::Sum,
           bytes_at(out, begin), out.scalar_type());
    }
  }

  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    check_contiguous(out, "all_to_all");
    check_contiguous(in, "all_to_all");
    const std::vector<int64_t> receive = starts_of(receive_counts), send = starts_of(send_counts);
    check_all_to_all(out, in, receive, send, rank_);
    const auto at = [](const std::vector<int64_t>& v) {
      return [&v](int r) { return v[static_cast<size_t>(r)]; };
    };
    std::copy_n(bytes_at(in, at(send)(rank_)), at(send_counts)(rank_) * in.element_size(),
                bytes_at(out, at(receive)(rank_)));
    start_all_to_all("all_to_all", in, at(send), out, at(receive), at(send_counts),
                     at(receive_counts))
        ->wait();
  }

  void broadcast(torch::Tensor t, int root) override {
    if (size_ == 1) return;
    check_contiguous(t, "broadcast");
    for (int64_t begin = 0; begin < t.numel(); begin += kBucket) {
      const int64_t count = std::min(kBucket, t.numel() - begin) * t.element_size();
      Requests requests(comm_, patience_, "broadcast");
      MPI_CHECK(MPI_Ibcast(bytes_at(t, begin), static_cast<int>(count), MPI_BYTE, root, comm_,
                           requests.add()));
      requests.wait();
    }
  }

  // Sends go on only while this rank calls MPI, so it stays until they are done. All receives are
  // there by then, so no two ranks wait for each other's.
  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    auto received = std::make_unique<Requests>(comm_, patience_, "exchange");
    for (const auto& [tensor, from] : receives) {
      check_contiguous(tensor, "exchange");
      post_receive(tensor, 0, tensor.numel(), from, *received);
    }
    Requests sent(comm_, patience_, "exchange");
    for (const auto& [tensor, to] : sends) {
      check_contiguous(tensor, "exchange");
      post_send(tensor, 0, tensor.numel(), to, sent);
    }
    sent.wait();
    return received;
  }

  void barrier() override {
    Requests requests(comm_, patience_, "barrier");
    MPI_CHECK(MPI_Ibarrier(comm_, requests.add()));
    requests.wait();
  }

  // All ranks report to rank 0, which answers with the list of absent ranks. Rank 0 may itself come
  // last, and late, so the others wait twice the patience for its answer.
  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    std::vector<int> absent;
    if (rank_ != 0) {
      MPI_Request sent = MPI_REQUEST_NULL;
      MPI_CHECK(MPI_Isend(nullptr, 0, MPI_INT, 0, kRollCallTag, comm_, &sent));
      MPI_CHECK(MPI_Request_free(&sent));
      MPI_Status status;
      if (!comes_by(Clock::now() + 2 * patience, 0, status)) return {0};
      int count = 0;
      MPI_CHECK(MPI_Get_count(&status, MPI_INT, &count));
      absent.resize(static_cast<size_t>(count));
      MPI_CHECK(MPI_Recv(absent.data(), count, MPI_INT, 0, kRollCallTag, comm_, MPI_STATUS_IGNORE));
      return absent;
    }
    const auto deadline = Clock::now() + patience;
    for (int r = 1; r < size_; ++r) {
      MPI_Status status;
      if (!comes_by(deadline, r, status)) {
        absent.push_back(r);
      } else {
        MPI_CHECK(MPI_Recv(nullptr, 0, MPI_INT, r, kRollCallTag, comm_, MPI_STATUS_IGNORE));
      }
    }
    for (int r = 1; r < size_; ++r) {
      if (std::find(absent.begin(), absent.end(), r) != absent.end()) continue;
      MPI_CHECK(MPI_Send(absent.data(), static_cast<int>(absent.size()), MPI_INT, r, kRollCallTag,
                         comm_));
    }
    return absent;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Whether a roll call message from `rank` comes before the deadline. Checks at least once.
  bool comes_by(Clock::time_point deadline, int rank, MPI_Status& status) {
    for (;;) {
      int here = 0;
      MPI_CHECK(MPI_Iprobe(rank, kRollCallTag, comm_, &here, &status));
      if (here) return true;
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // Returns the addresses of the rows of parts [size, n], with `mine` for this rank's own row.
  std::vector<const std::byte*> rows(const torch::Tensor& parts, const std::byte* mine) const {
    std::vector<const std::byte*> at;
    for (int r = 0; r < size_; ++r)
      at.push_back(r == rank_ ? mine : bytes_at(parts, r * parts.size(1)));
    return at;
  }

  // Reduces at most kBucket * size elements. Every rank folds its own part, then the parts are
  // gathered.
  void all_reduce_bucket(const torch::Tensor& t, ReduceOp op) {
    const int64_t n = t.numel(), part = (n + size_ - 1) / size_;
    const auto begin = [&](int r) { return std::min(r * part, n); };
    const auto count = [&](int r) { return begin(r + 1) - begin(r); };
    const int64_t mine = count(rank_);
    const torch::Tensor parts = torch::empty({size_, mine}, t.options());
    start_all_to_all(
        "all_reduce", t, begin, parts, [&](int r) { return r * mine; }, count,
        [&](int) { return mine; })
        ->wait();
    std::byte* sum = bytes_at(t, begin(rank_));
    fold(rows(parts, sum), mine, t.scalar_type(), op, sum, t.scalar_type());
    start_all_to_all(
        "all_reduce", t, [&](int) { return begin(rank_); }, t, begin, [&](int) { return mine; },
        count)
        ->wait();
  }

  // Sends in[send_begin(r), + send_count(r)) to every other rank r, and receives from it at
  // out[recv_begin(r), ...).
  template <class SendBegin, class RecvBegin, class SendCount, class RecvCount>
  std::unique_ptr<Pending> start_all_to_all(const char* verb, const torch::Tensor& in,
                                            SendBegin send_begin, const torch::Tensor& out,
                                            RecvBegin recv_begin, SendCount send_count,
                                            RecvCount recv_count) {
    auto requests = std::make_unique<Requests>(comm_, patience_, verb);
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ - step + size_) % size_;
      post_receive(out, recv_begin(from), recv_count(from), from, *requests);
    }
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      post_send(in, send_begin(to), send_count(to), to, *requests);
    }
    return requests;
  }

  void post_send(const torch::Tensor& t, int64_t begin, int64_t count, int to, Requests& requests) {
    for_each_message(t, begin, count, [&](std::byte* data, int bytes) {
      MPI_CHECK(MPI_Isend(data, bytes, MPI_BYTE, to, 0, comm_, requests.add(to)));
    });
  }
  void post_receive(const torch::Tensor& t, int64_t begin, int64_t count, int from,
                    Requests& requests) {
    for_each_message(t, begin, count, [&](std::byte* data, int bytes) {
      MPI_CHECK(MPI_Irecv(data, bytes, MPI_BYTE, from, 0, comm_, requests.add(from)));
    });
  }
  template <class Fn>
  void for_each_message(const torch::Tensor& t, int64_t begin, int64_t count, Fn fn) {
    for (int64_t done = 0; done < count; done += kBucket) {
      fn(bytes_at(t, begin + done),
         static_cast<int>(std::min(kBucket, count - done) * t.element_size()));
    }
  }

  MPI_Comm comm_;
  bool owned_;
  std::shared_ptr<const Patience> patience_;
  int rank_ = 0, size_ = 1;
};

}  // namespace

bool started_by_launcher() {
  return std::ranges::any_of(
      std::array{"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"},
      [](const char* name) { return std::getenv(name); });
}

void abort_quietly(int status) {
  void* pmix = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (!pmix) return;
  using Abort = int(int status, const char* message, void* processes, size_t count);
  if (auto* abort = reinterpret_cast<Abort*>(dlsym(pmix, "PMIx_Abort")))
    if (abort(status, "", nullptr, 0) == 0) std::_Exit(status);
}

// Flushes nothing: a rank that hangs may hold the lock of stdout.
void end_process(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  abort_quietly(1);
  int started = 0;
  MPI_Initialized(&started);
  if (started) MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

MpiEnvironment::MpiEnvironment(int* argc, char*** argv) {
  int provided = 0;
  // A backward on a GPU runs in its own thread, which communicates while the main thread waits.
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
  TORCH_CHECK(provided >= MPI_THREAD_SERIALIZED,
              "this MPI is built for calls from the main thread alone (thread level ", provided,
              ", expected ", MPI_THREAD_SERIALIZED,
              ", MPI_THREAD_SERIALIZED); use an MPI that supports threads, as Debian's Open MPI");
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_set_name(MPI_COMM_WORLD, "world"));
}

MpiEnvironment::~MpiEnvironment() { MPI_Finalize(); }

CommPtr MpiEnvironment::world(Patience patience) const {
  return c10::make_intrusive<MpiCommunicator>(MPI_COMM_WORLD, /*owned=*/false,
                                              std::make_shared<Patience>(std::move(patience)));
}

CommPtr MpiEnvironment::local() const {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &part));
  return c10::make_intrusive<MpiCommunicator>(part, /*owned=*/true, std::make_shared<Patience>());
}

// Skips MPI_Abort and its message for a rank that is alone.
void MpiEnvironment::end(int status) const {
  std::fflush(nullptr);
  abort_quietly(status);
  if (world()->size() > 1) MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace anymesh
