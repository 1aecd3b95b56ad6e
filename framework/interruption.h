#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// SIGTERM and SIGUSR1, kept for interruption.poll() to find: nothing happens when they arrive. To
// be made before any thread, MPI's included, since threads inherit what is blocked.
struct HeldSignals {
  HeldSignals();
  // Ends this process, one of a job that another ends, when SIGTERM comes. Returns if none does.
  static void await_end(std::chrono::seconds patience);
};

// Whether a run should stop early, or save now: a signal to any rank (a scheduler's notice of
// preemption), its time, or a file that someone makes. All ranks get the same answer.
//
//   HeldSignals held;                                       first line of main
//   Interruption interruption(world, {.duration_minutes = 90});
//   if (interruption.poll()) ...                            between steps, on every rank
class Interruption {
 public:
  struct Options {
    double duration_minutes = 0;        // --exit-duration-in-mins; 0 = no end
    std::filesystem::path kill_switch;  // --kill-switch-file: stop while it exists
    std::filesystem::path save_switch;  // --save-switch-file: save once, and remove it
  };
  Interruption(CommPtr world, Options options);

  // Looks and agrees. Collective. True once the run should stop, and ever after.
  bool poll();
  // Why: "SIGTERM", "--exit-duration-in-mins 90", ...; empty while there is no reason.
  const std::string& reason() const { return reason_; }
  // Whether a save was asked for since the last call. A switch that cannot be removed is ignored.
  bool take_save_request();

 private:
  int64_t local_reason() const;
  bool take_save_switch();

  CommPtr world_;
  Options options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string reason_;
  bool save_ = false;
};

}  // namespace anymesh
