#pragma once

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace anymesh {

// Shows the progress of a run or its save in the last line of stdout, rewritten at most five times
// a second. Shows nothing if stdout is not a terminal.
//
//   [===========>                  ]  37 % of 1000 steps | 4.21 steps/s | ETA 150 s
//
// mpirun gives its ranks a terminal even if it does not write to one itself. Under Open MPI the bar
// therefore needs ANYMESH_TERMINAL in the environment; tools/mpirun.sh sets it if stdout is a
// terminal.
class ProgressBar {
 public:
  explicit ProgressBar(bool active) : active_(active && on_terminal()) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool active() const { return active_; }

  // `part` is the fraction done. `what` follows the percentage: "of 1000 steps | 4.21 steps/s".
  void show(double part, const std::string& what, double eta_s) {
    const auto now = std::chrono::steady_clock::now();
    if (!active_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    constexpr double kWidth = 30;
    const std::string bar = std::string(static_cast<size_t>(kWidth * part), '=') + ">";
    std::printf("\r[%-30.30s] %3.0f %% %s | ETA %.0f s\033[K", bar.c_str(), std::floor(100 * part),
                what.c_str(), eta_s);
    std::fflush(stdout);
    shown_ = true;
  }

  // Call this before printing anything else.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\033[K", stdout);
    std::fflush(stdout);
    shown_ = false;
  }

 private:
  static bool on_terminal() {
    if (std::getenv("ANYMESH_TERMINAL")) return true;
    return !std::getenv("OMPI_COMM_WORLD_SIZE") && isatty(STDOUT_FILENO);
  }

  bool active_, shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace anymesh
