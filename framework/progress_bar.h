#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace anymesh {

// How far a run is: a last line on stdout that is rewritten, at most five times a second, where
// stdout is a terminal; nothing elsewhere.
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

  void show(int64_t done, int64_t all, double steps_per_s, double eta_s) {
    const auto now = std::chrono::steady_clock::now();
    if (!active_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    constexpr int64_t kWidth = 30;
    const int64_t filled = std::min(kWidth, kWidth * done / std::max<int64_t>(1, all));
    const std::string bar = std::string(static_cast<size_t>(filled), '=') + ">";
    std::printf("\r[%-30.30s] %3" PRId64 " %% of %" PRId64
                " steps | %.2f steps/s | ETA %.0f s\033[K",
                bar.c_str(), 100 * done / std::max<int64_t>(1, all), all, steps_per_s, eta_s);
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
