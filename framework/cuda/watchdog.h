#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace anymesh {

// A thread that checks that started work ends, in order:
//
//   Watchdog watchdog(std::chrono::minutes(10));
//   watchdog.watch("all_reduce of the group tp", [event] { return event->is_done(); });
//
// Work fails if it does not end within `patience` after all work before it, or if its `is_done`
// throws. Without a `fail` from the caller, a failure prints a line on stderr and ends the process,
// which ends the job.
class Watchdog {
 public:
  using Fail = std::function<void(const std::string& message)>;
  explicit Watchdog(std::chrono::milliseconds patience, Fail fail = end_process);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The thread calls `is_done`.
  void watch(std::string what, std::function<bool()> is_done);
  // Forgets all work. No `is_done` is called any more once this returns.
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
  Clock::time_point progress_ = Clock::now();  // when watched_.front() became the first
  bool stop_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace anymesh
