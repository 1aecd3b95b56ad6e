#include "framework/cuda/watchdog.h"

#include <atomic>
#include <future>
#include <stdexcept>

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

using std::chrono::milliseconds;

// Takes a watchdog's message, if it comes within ten seconds.
class Said {
 public:
  Watchdog::Fail fail() {
    return [this](const std::string& message) { promise_.set_value(message); };
  }
  std::string text() {
    std::future<std::string> future = promise_.get_future();
    return future.wait_for(std::chrono::seconds(10)) == std::future_status::ready ? future.get()
                                                                                  : "nothing";
  }

 private:
  std::promise<std::string> promise_;
};

TEST(Watchdog, NamesWhatDoesNotEndAndNotWhatDid) {
  Said said;
  Watchdog watchdog(milliseconds(300), said.fail());
  watchdog.watch("the first", [] { return true; });
  watchdog.watch("the second", [] { return false; });
  watchdog.watch("the third", [] { return false; });
  EXPECT_THAT(said.text(), HasSubstr("the second: not done within 300 ms"));
}

TEST(Watchdog, TellsWhatTheQuestionThrows) {
  Said said;
  Watchdog watchdog(std::chrono::minutes(10), said.fail());
  watchdog.watch("all_reduce of tp", []() -> bool { throw std::runtime_error("broken link"); });
  EXPECT_EQ(said.text(), "all_reduce of tp: broken link");
}

// Each one's time begins when those before it ended, and nothing is asked after clear().
TEST(Watchdog, IsQuietWhileThereIsProgress) {
  std::atomic<bool> failed = false;
  std::atomic<int> asked = 0;
  Watchdog watchdog(milliseconds(400), [&](const std::string&) { failed = true; });
  for (int i = 1; i <= 8; ++i) {
    watchdog.watch("a verb", [&asked, i] { return ++asked > 2 * i; });
  }
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_FALSE(failed);
  EXPECT_GT(asked, 4);
  watchdog.watch("for ever", [&asked] {
    ++asked;
    return false;
  });
  watchdog.clear();
  const int before = asked;
  std::this_thread::sleep_for(milliseconds(700));
  EXPECT_EQ(asked, before);
  EXPECT_FALSE(failed);
}

TEST(WatchdogDeathTest, EndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Watchdog watchdog(milliseconds(1));
        watchdog.watch("exchange of pp", [] { return false; });
        std::this_thread::sleep_for(std::chrono::seconds(10));
      },
      testing::ExitedWithCode(1), "exchange of pp: not done within 1 ms");
}

}  // namespace
}  // namespace anymesh
