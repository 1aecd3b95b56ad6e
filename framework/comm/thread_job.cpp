#include "framework/comm/thread_job.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <numeric>
#include <string>
#include <thread>

#include "framework/comm/fold.h"
#include "framework/comm/host_tensor.h"
#include "framework/comm/parts.h"
#include "framework/comm/thread_group.h"

namespace anymesh {
namespace {

// Returns the address `offset` bytes into every member's input.
std::vector<const std::byte*> inputs(const Places& places, int64_t offset) {
  std::vector<const std::byte*> at;
  for (const Place& place : places) at.push_back(place.in + offset);
  return at;
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class Gathering final : public Pending {
 public:
  Gathering(ThreadMember member, Place mine, int64_t bytes)
      : member_(std::move(member)),
        work_([bytes](const Places& places, size_t part) {
          for (const Place& place : places)
            copy_bytes(place.out + static_cast<int64_t>(part) * bytes, places[part].in, bytes);
        }),
        meeting_(member_.come(mine, bytes * static_cast<int64_t>(member_.size()), work_)) {}
  ~Gathering() override {
    try {
      wait();
    } catch (const JobEnded&) {  // another rank reports the cause
    }
  }
  void wait() override {
    if (const auto meeting = std::exchange(meeting_, nullptr))
      member_.finish("all_gather", *meeting, work_);
  }

 private:
  ThreadMember member_;
  Work work_;
  std::shared_ptr<Meeting> meeting_;
};

class Exchange final : public Pending {
 public:
  Exchange(ThreadMember member, const std::vector<Message>& sends,
           const std::vector<Message>& receives)
      : member_(std::move(member)) {
    for (const auto* messages : {&sends, &receives}) {
      for (const auto& [tensor, peer] : *messages) {
        check_contiguous(tensor, "exchange");
        halves_.push_back({peer, messages == &sends, bytes_at(tensor), tensor.nbytes()});
      }
    }
    try {
      member_.start(halves_);
    } catch (...) {
      member_.leave(halves_);
      throw;
    }
  }
  ~Exchange() override { member_.leave(halves_); }
  void wait() override { member_.finish(halves_); }

 private:
  ThreadMember member_;
  std::deque<Half> halves_;
};

// A member's request to split(), and the answer.
struct NewPlace {
  int color, key;
  std::shared_ptr<ThreadGroup> group = nullptr;
  int rank = 0;
};

// A member's tensors in an all-to-all, and where each rank's elements start in them.
struct Parcels {
  std::byte* out;
  const std::byte* in;
  std::vector<int64_t> receive, send;
};

void form_groups(const Places& places, const std::vector<int>& world_ranks,
                 const std::string& name) {
  std::map<int, std::vector<std::pair<int, size_t>>> colors;  // key and member
  const auto request = [&](size_t member) {
    return reinterpret_cast<NewPlace*>(places[member].out);
  };
  for (size_t member = 0; member < places.size(); ++member)
    colors[request(member)->color].emplace_back(request(member)->key, member);
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& [key, member] : members) ranks.push_back(world_ranks[member]);
    const auto group = std::make_shared<ThreadGroup>(name, std::move(ranks));
    for (size_t rank = 0; rank < members.size(); ++rank) {
      request(members[rank].second)->group = group;
      request(members[rank].second)->rank = static_cast<int>(rank);
    }
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  explicit ThreadCommunicator(ThreadMember member) : member_(std::move(member)) {}

  int rank() const override { return member_.rank(); }
  int size() const override { return static_cast<int>(member_.size()); }

  CommPtr split(int color, int key, const std::string& name) const override {
    NewPlace mine{color, key};
    member_.meet("split", {.out = reinterpret_cast<std::byte*>(&mine)}, 0,
                 [&](const Places& places, size_t part) {
                   if (part == 0) form_groups(places, member_.world_ranks(), name);
                 });
    return c10::make_intrusive<ThreadCommunicator>(member_.in(mine.group, mine.rank));
  }

  // Each part is folded in one member's tensor and copied to the others.
  void all_reduce(torch::Tensor t, ReduceOp op) override {
    if (size() == 1) return;
    check_contiguous(t, "all_reduce");
    const int64_t n = t.numel(), part_numel = (n + size() - 1) / size(), width = t.element_size();
    member_.meet("all_reduce", {.out = bytes_at(t), .in = bytes_at(t)}, bytes_of_all(t),
                 [&](const Places& places, size_t part) {
                   const int64_t begin = std::min(static_cast<int64_t>(part) * part_numel, n),
                                 count = std::min(part_numel, n - begin);
                   if (count == 0) return;
                   std::byte* sum = places[part].out + begin * width;
                   fold(inputs(places, begin * width), count, t.scalar_type(), op, sum,
                        t.scalar_type());
                   for (const Place& place : places)
                     copy_bytes(place.out + begin * width, sum, count * width);
                 });
  }

  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    check_contiguous(out, "all_gather");
    check_contiguous(in, "all_gather");
    TORCH_INTERNAL_ASSERT(out.numel() == in.numel() * size() && out.dtype() == in.dtype());
    return std::make_unique<Gathering>(member_, Place{.out = bytes_at(out), .in = bytes_at(in)},
                                       static_cast<int64_t>(in.nbytes()));
  }

  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    check_contiguous(out, "reduce_scatter");
    check_contiguous(in, "reduce_scatter");
    const std::vector<int64_t> starts = starts_of(counts);
    TORCH_INTERNAL_ASSERT(in.numel() == starts.back() &&
                          out.numel() == counts[static_cast<size_t>(rank())]);
    member_.meet("reduce_scatter", {.out = bytes_at(out), .in = bytes_at(in)}, bytes_of_all(in),
                 [&](const Places& places, size_t part) {
                   fold(inputs(places, starts[part] * in.element_size()), counts[part],
                        in.scalar_type(), ReduceOp::Sum, places[part].out, out.scalar_type());
                 });
  }

  // Each part is what one member receives.
  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    check_contiguous(out, "all_to_all");
    check_contiguous(in, "all_to_all");
    Parcels mine{bytes_at(out), bytes_at(in), starts_of(receive_counts), starts_of(send_counts)};
    check_all_to_all(out, in, mine.receive, mine.send, rank());
    const int64_t width = in.element_size();
    member_.meet("all_to_all", {.out = reinterpret_cast<std::byte*>(&mine)}, bytes_of_all(in),
                 [width](const Places& places, size_t part) {
                   const auto parcels = [&](size_t member) {
                     return reinterpret_cast<const Parcels*>(places[member].out);
                   };
                   const Parcels& to = *parcels(part);
                   for (size_t member = 0; member < places.size(); ++member) {
                     const Parcels& from = *parcels(member);
                     const int64_t count = from.send[part + 1] - from.send[part];
                     TORCH_CHECK(count == to.receive[member + 1] - to.receive[member],
                                 "all_to_all: a rank sends ", count, " elements, another expects ",
                                 to.receive[member + 1] - to.receive[member]);
                     copy_bytes(to.out + to.receive[member] * width,
                                from.in + from.send[part] * width, count * width);
                   }
                 });
  }

  void broadcast(torch::Tensor t, int root) override {
    check_contiguous(t, "broadcast");
    member_.meet("broadcast", {.out = bytes_at(t)}, bytes_of_all(t),
                 [&](const Places& places, size_t part) {
                   copy_bytes(places[part].out, places[static_cast<size_t>(root)].out,
                              static_cast<int64_t>(t.nbytes()));
                 });
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    return std::make_unique<Exchange>(member_, sends, receives);
  }

  void barrier() override {
    member_.meet("barrier", {}, 0, [](const Places&, size_t) {});
  }

  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    return member_.roll_call(patience);
  }

 private:
  int64_t bytes_of_all(const torch::Tensor& t) const {
    return static_cast<int64_t>(t.nbytes()) * size();
  }

  ThreadMember member_;
};

class ThreadJob final : public Job {
 public:
  ThreadJob(std::shared_ptr<ThreadRanks> ranks, std::shared_ptr<ThreadGroup> world, int rank)
      : ranks_(std::move(ranks)), world_(std::move(world)), rank_(rank) {}

  CommPtr world(Patience patience) const override {
    return c10::make_intrusive<ThreadCommunicator>(
        ThreadMember(ranks_, world_, rank_, std::make_shared<Patience>(std::move(patience))));
  }
  CommPtr local() const override { return world({}); }

 private:
  void end(int) const override { std::fflush(nullptr); }

  std::shared_ptr<ThreadRanks> ranks_;
  std::shared_ptr<ThreadGroup> world_;
  int rank_;
};

}  // namespace

void run_on_threads(int count, const std::function<void(const Job&)>& body) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  const auto ranks = std::make_shared<ThreadRanks>(count);
  const auto world = std::make_shared<ThreadGroup>("world", std::move(all));
  const auto run_rank = [&](int rank) {
    try {
      body(ThreadJob(ranks, world, rank));
    } catch (...) {
      ranks->end(std::current_exception());
    }
  };
  std::promise<bool> all_started;
  const std::shared_future<bool> may_run(all_started.get_future());
  const auto thread_of = [&](int rank) {
    return std::jthread([&run_rank, may_run, rank] {
      pthread_setname_np(pthread_self(), ("rank " + std::to_string(rank)).c_str());
      if (may_run.get()) run_rank(rank);
    });
  };
  std::vector<std::jthread> threads;
  try {
    for (int rank = 1; rank < count; ++rank) threads.push_back(thread_of(rank));
  } catch (...) {
    all_started.set_value(false);
    throw;
  }
  all_started.set_value(true);
  run_rank(0);
  threads.clear();
  if (ranks->first_error) std::rethrow_exception(ranks->first_error);
}

}  // namespace anymesh
