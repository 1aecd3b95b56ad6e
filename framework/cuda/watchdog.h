#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace anymesh {

// A thread that looks after what was started and has to end, in order:
//
//   Watchdog watchdog(std::chrono::minutes(10));
//   watchdog.watch("all_reduce of the group tp", [event] { return event->is_done(); });
//
// What does not end in time after all before it did, or whose question throws, is a failure:
// without a `fail` of the caller's, a line on stderr and the end of the process, which ends the
// job.
class Watchdog {
 public:
  using Fail = std::function<void(const std::string& message)>;
  explicit Watchdog(std::chrono::milliseconds patience, Fail fail = end_process);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `is_done` is asked by the thread.
  void watch(std::string what, std::function<bool()> is_done);
  // Forgets everything; nothing is asked any more when it returns.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    std::string what;
    std::function<bool()> is_done;
  };
  static void end_process(const std::string& message);
  void run();
  void look();

  const std::chrono::milliseconds patience_;
  const Fail fail_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watched> watched_;
  Clock::time_point progress_ = Clock::now();  // when the first of them became the first
  bool stop_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace anymesh
