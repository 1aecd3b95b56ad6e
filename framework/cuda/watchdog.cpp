#include "framework/cuda/watchdog.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace anymesh {
namespace {

constexpr std::chrono::milliseconds kInterval{100};  // between two checks

std::string text_of(std::chrono::milliseconds time) {
  const auto count = time.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

}  // namespace

Watchdog::Watchdog(std::chrono::milliseconds patience, Fail fail)
    : patience_(patience), fail_(std::move(fail)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(std::string what, std::function<bool()> is_done) {
  const std::lock_guard lock(mutex_);
  if (watched_.empty()) progress_ = Clock::now();
  watched_.push_back({std::move(what), std::move(is_done)});
}

void Watchdog::clear() {
  const std::lock_guard lock(mutex_);
  watched_.clear();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return stop_; })) look();
}

void Watchdog::look() {
  std::string problem;
  try {
    while (!watched_.empty() && watched_.front().is_done()) {
      watched_.pop_front();
      progress_ = Clock::now();
    }
    if (watched_.empty() || Clock::now() - progress_ <= patience_) return;
    problem = "not done within " + text_of(patience_) +
              " (--distributed-timeout-minutes); a rank of the group does not take part, or cannot";
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::string message = watched_.front().what + ": " + problem;
  watched_.clear();
  fail_(message);
}

// Neither throws, because nobody would catch it, nor exits in order, because the hanging work would
// hang that too.
void Watchdog::end_process(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::_Exit(1);
}

}  // namespace anymesh
