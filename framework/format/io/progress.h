#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "framework/util/format.h"

namespace anymesh {

// How far an operation that streams has got. A total of 0 means that it is not known.
struct Progress {
  uint64_t bytes_done = 0, bytes_total = 0;
  double seconds = 0;

  double part() const {
    return bytes_total > 0 ? static_cast<double>(bytes_done) / static_cast<double>(bytes_total) : 1;
  }
  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes_done) / seconds : 0; }
  double eta_s() const { return bytes_done > 0 ? seconds * (1 / part() - 1) : 0; }
  // "of 1.49 GB, 612.40 MB/s"; "0.31 GB, 612.40 MB/s" without a total
  std::string text() const {
    const bool known = bytes_total > 0;
    return (known ? "of " : "") + size_text(static_cast<double>(known ? bytes_total : bytes_done)) +
           ", " + size_text(bytes_per_s()) + "/s";
  }
};
using ProgressCallback = std::function<void(const Progress&)>;  // from any thread, one at a time

// Adds up the bytes that threads have done and calls a callback at most five times a second.
class ProgressCounter {
 public:
  ProgressCounter(uint64_t total, const ProgressCallback& callback)
      : total_(total), callback_(callback) {}

  void add(uint64_t bytes) {
    const uint64_t done = done_ += bytes;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const auto now = Clock::now();
    if (!callback_ || !lock || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    callback_({done, total_, std::chrono::duration<double>(now - start_).count()});
  }

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t total_;
  const ProgressCallback& callback_;
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

}  // namespace anymesh
