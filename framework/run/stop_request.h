#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "framework/comm/communicator.h"
#include "framework/config/config.h"

namespace anymesh {

// Blocks SIGTERM and SIGUSR1, so that they have no effect until StopRequest::poll() finds them.
// Make it before any thread, including MPI's, since threads inherit the signal mask.
struct HeldSignals {
  HeldSignals();
  // Waits for SIGTERM and then ends this process; another rank ends the job. Returns if no SIGTERM
  // comes within `patience`.
  static void await_end(std::chrono::seconds patience);
};

// Decides whether a run should stop early, or save now: on a signal to any rank (a scheduler's
// notice of preemption), after a given time, or when a file appears. All ranks get the same answer.
//
//   HeldSignals held;                                       first line of main
//   StopRequest interruption(world, config.checkpoint);
//   if (interruption.poll()) ...                            between steps, on every rank
class StopRequest {
 public:
  // Obeys --exit-duration-in-mins, --kill-switch-file (stop while it exists) and --save-switch-file
  // (save once, and remove it).
  StopRequest(CommPtr world, const CheckpointConfig& flags);

  // Checks, and agrees over all ranks. Collective. Returns true once the run should stop, and from
  // then on.
  bool poll();
  // The reason: "SIGTERM", "--exit-duration-in-mins 90", ...; empty while there is none.
  const std::string& reason() const { return reason_; }
  // Whether a save was requested since the last call. A switch that cannot be removed is ignored.
  bool take_save_request();

 private:
  int64_t local_reason() const;
  bool take_save_switch();

  CommPtr world_;
  double duration_minutes_;  // 0 = no limit
  std::filesystem::path kill_switch_, save_switch_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string reason_;
  bool save_ = false;
};

}  // namespace anymesh
