#pragma once

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace anymesh {

// How far a run or its save is: a last line on stdout that is rewritten, at most five times a
// second, where stdout is a terminal; nothing elsewhere.
//
//   [===========>                  ]  37 % of 1000 steps | 4.21 steps/s | ETA 150 s
//
// mpirun gives its ranks a terminal of their own whether or not it writes to one, so under Open MPI
// it takes ANYMESH_TERMINAL in the environment, which tools/mpirun.sh sets where it does.
class ProgressBar {
 public:
  explicit ProgressBar(bool active) : active_(active && on_terminal()) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  bool active() const { return active_; }

  // `part` of 1 is done; `what` follows the percentage: "of 1000 steps | 4.21 steps/s".
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

  // To be called before anything else is printed.
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
