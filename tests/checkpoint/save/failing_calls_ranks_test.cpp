// Saves with one failing call of the operating system, each in turn, on the first and the last
// rank. Nothing is lost, all ranks are told why, and the next save succeeds.
#include <cstring>
#include <optional>

#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "tests/support/failing_calls.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using FailingCalls = SharedFolder;

#ifdef ANYMESH_SANITIZE
constexpr int64_t kEvery = 3;  // a call at each place of the save, not all calls there
#else
constexpr int64_t kEvery = 1;
#endif

RANKS_TEST_F(FailingCalls, NoneLosesACheckpoint) {
  const bool first = test_world()->rank() == 0;
  const auto together = [&](const std::function<void()>& work) {
    all_or_none(*test_world(), [&] {
      if (first) work();
    });
  };
  TinyRun run(kPipes, 1), again(kPipes, 1);
  std::vector<std::vector<torch::Tensor>> states;
  for (int step = 1; step <= 2; ++step) {
    run.train(1);
    if (step == 1) run.engine.save_checkpoint(folder_);
    states.push_back(run.state());
  }
  test_world()->barrier();
  std::vector<std::string> whole = files_in(folder_);
  whole.insert(std::find(whole.begin(), whole.end(), kLatestFile), "global_step2");
  for (const auto& [rank, calls] : {std::pair(0, 20), std::pair(3, 8)}) {
    int64_t at = 0;
    for (bool met = true; met; at += kEvery) {
      const int reason = at / kEvery % 2 == 0 ? ENOSPC : EIO;
      SCOPED_TRACE(c10::str("call ", at, " of rank ", rank));
      std::optional<FailingCall> failing;
      if (test_world()->rank() == rank) failing.emplace(folder_, at, reason);
      const std::string message = message_of([&] { run.engine.save_checkpoint(folder_); });
      met = max_over(*test_world(), failing && failing->met() ? 1 : 0) > 0;
      failing.reset();
      ASSERT_EQ(met, !message.empty());
      if (met) {
        EXPECT_THAT(message, HasSubstrs(std::strerror(reason), folder_));
      }

      const std::string newest = read_tag(folder_ / kLatestFile);
      ASSERT_THAT(newest, AnyOf("global_step1", "global_step2"));
      const LoadResult loaded = again.engine.load_checkpoint(folder_, {.verify = true});
      EXPECT_EQ(loaded.path, folder_ / newest);
      EXPECT_TRUE(same(again.state(), states[newest == "global_step1" ? 0 : 1]));

      run.engine.save_checkpoint(folder_);
      EXPECT_EQ(again.engine.load_checkpoint(folder_, {.verify = true}).path,
                folder_ / "global_step2");
      EXPECT_TRUE(same(again.state(), states[1]));
      if (first) {
        EXPECT_EQ(files_in(folder_), whole);
      }
      together([&] {
        fs::remove_all(folder_ / "global_step2");
        write_text_atomically(folder_ / kLatestFile, "global_step1");
      });
    }
    EXPECT_GT(at, calls) << rank;
  }
}

}  // namespace
}  // namespace anymesh
