#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

#include "framework/util/format.h"
#include "framework/util/terminal.h"

namespace anymesh {

// Returns "37 % of 1000 steps, 4.21 steps/s, ETA 2 min". `part` is the fraction done. `what`
// follows the percentage: "of 1000 steps, 4.21 steps/s".
inline std::string progress_text(double part, const std::string& what, double eta_s) {
  return string_printf("%.0f %% ", std::floor(100 * part)) + what + ", ETA " + duration_text(eta_s);
}

// Shows progress in the last line of a terminal, rewritten at most five times a second. Shows
// nothing if the stream is not a terminal.
//
//   [======>         ] 37 % of 1000 steps, 4.21 steps/s, ETA 2 min
class ProgressBar {
 public:
  explicit ProgressBar(std::FILE* stream, bool active = true)
      : stream_(stream), active_(active && on_terminal(stream)) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool active() const { return active_; }

  void show(double part, const std::string& what, double eta_s) {
    constexpr double kWidth = 16;
    const std::string bar = std::string(static_cast<size_t>(kWidth * part), '=') + ">";
    show(string_printf("[%-16.16s] ", bar.c_str()) + progress_text(part, what, eta_s));
  }

  // Shows a line without a bar.
  void show(const std::string& line) {
    const auto now = std::chrono::steady_clock::now();
    if (!active_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    std::fprintf(stream_, "\r%s\033[K", line.c_str());
    std::fflush(stream_);
    shown_ = true;
  }

  // Call this before printing anything else.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\033[K", stream_);
    std::fflush(stream_);
    shown_ = false;
  }

 private:
  std::FILE* stream_;
  bool active_, shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace anymesh
