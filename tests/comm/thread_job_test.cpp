// Ranks on threads: how a failure ends them, and many at once; communicator_ranks_test has the
// verbs.
#include "framework/comm/thread_job.h"

#include <atomic>
#include <thread>

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

TEST(ThreadJob, ARankThatThrowsReleasesTheOthersFromWhateverTheyWaitIn) {
  const std::vector<std::function<void(Communicator&)>> waits = {
      [](Communicator& comm) { comm.barrier(); },
      [](Communicator& comm) { comm.all_reduce(torch::ones({9})); },
      [](Communicator& comm) { comm.all_gather(torch::ones({4}), torch::ones({1})); },
      [](Communicator& comm) { comm.exchange(torch::ones({2}), 3, torch::ones({2}), 3); },
      [](Communicator& comm) { comm.split(0, 0)->barrier(); },
      [](Communicator& comm) { comm.roll_call(std::chrono::minutes(10)); },
  };
  for (const auto& wait : waits) {
    std::atomic<int> released = 0;
    const std::string message = message_of([&] {
      run_on_threads(4, [&](const Job& job) {
        const CommPtr world = job.world();
        if (world->rank() == 3) throw std::runtime_error("rank 3 has had enough");
        try {
          wait(*world);
          world->barrier();
        } catch (const JobEnded&) {
          ++released;
          throw;
        }
      });
    });
    EXPECT_EQ(message, "rank 3 has had enough");
    EXPECT_EQ(released, 3);
  }
}

TEST(ThreadJob, ManyRanksOnFewCores) {
  constexpr int kRanks = 32;
  run_on_threads(kRanks, [](const Job& job) {
    const CommPtr world = job.world(), half = world->split(world->rank() % 2, -world->rank());
    for (int i = 0; i < 50; ++i) {
      torch::Tensor sum = torch::full({i + 1}, half->rank(), torch::kLong);
      half->all_reduce(sum);
      EXPECT_TRUE((sum == kRanks / 2 * (kRanks / 2 - 1) / 2).all().item<bool>());
      torch::Tensor got = torch::zeros({1}, torch::kLong);
      const int next = (world->rank() + 1) % kRanks, before = (next + kRanks - 2) % kRanks;
      world->exchange(torch::full({1}, world->rank(), torch::kLong), next, got, before);
      EXPECT_EQ(got.item<int64_t>(), before);
    }
  });
}

// Gathers overlap with each other and with other verbs of their group, and may end in any order.
TEST(ThreadJob, StartedGathersLeaveTheGroupFree) {
  for (const int64_t n : {3, 400'000}) {
    run_on_threads(3, [n](const Job& job) {
      const CommPtr world = job.world();
      const torch::Tensor mine = torch::full({n}, world->rank(), torch::kFloat), more = mine + 10;
      torch::Tensor a = torch::zeros({3, n}), b = torch::zeros({3, n}), sum = mine.clone();
      const auto first = world->start_all_gather(a, mine);
      const auto second = world->start_all_gather(b, more);
      world->all_reduce(sum);
      world->barrier();
      second->wait();
      first->wait();
      for (int r = 0; r < 3; ++r) {
        EXPECT_TRUE((a[r] == r).all().item<bool>());
        EXPECT_TRUE((b[r] == r + 10).all().item<bool>());
      }
      EXPECT_TRUE((sum == 3).all().item<bool>());
    });
  }
}

TEST(ThreadJob, HalvesOfDifferentSizesAreAnError) {
  EXPECT_THAT(message_of([] {
                run_on_threads(2, [](const Job& job) {
                  const CommPtr world = job.world();
                  torch::Tensor here = torch::zeros({world->rank() + 1});
                  if (world->rank() == 0) world->exchange(here, 1, {}, 1);
                  if (world->rank() == 1) world->exchange({}, 0, here, 0);
                });
              }),
              HasSubstr("4 bytes"));
}

TEST(ThreadJob, ARollCallNamesWhoDoesNotCome) {
  run_on_threads(3, [](const Job& job) {
    const CommPtr world = job.world();
    if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_THAT(world->roll_call(std::chrono::milliseconds(50)), ElementsAre(1));
  });
  run_on_threads(3, [](const Job& job) {
    EXPECT_TRUE(job.world()->roll_call(std::chrono::minutes(1)).empty());
  });
}

}  // namespace
}  // namespace anymesh
