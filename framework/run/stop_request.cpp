#include "framework/run/stop_request.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// With several reasons the greatest one counts. poll() has their texts in this order.
enum Reason : int64_t { kNone, kDuration, kKillSwitch, kUsr1, kTerm };

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  return set;
}

// Returns a signal that has arrived since the last call, or 0.
int take_signal() {
  const sigset_t set = stop_signals();
  const timespec now{};
  return std::max(0, sigtimedwait(&set, nullptr, &now));
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return !file.empty() && fs::exists(file, ignored);
}

}  // namespace

HeldSignals::HeldSignals() {
  const sigset_t set = stop_signals();
  TORCH_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, "cannot hold SIGTERM and SIGUSR1");
}

void HeldSignals::await_end(std::chrono::seconds patience) {
  const sigset_t set = stop_signals();
  const timespec time{.tv_sec = patience.count(), .tv_nsec = 0};
  if (sigtimedwait(&set, nullptr, &time) == SIGTERM) std::_Exit(1);
}

StopRequest::StopRequest(CommPtr world, const CheckpointConfig& flags)
    : world_(std::move(world)),
      duration_minutes_(flags.exit_duration_in_mins),
      kill_switch_(flags.kill_switch_file),
      save_switch_(flags.save_switch_file) {}

// Clocks and file systems differ between ranks, so only rank 0's count.
int64_t StopRequest::local_reason() const {
  const int signal = take_signal();
  if (signal == SIGTERM) return kTerm;
  if (signal == SIGUSR1) return kUsr1;
  if (world_->rank() != 0) return kNone;
  if (is_there(kill_switch_)) return kKillSwitch;
  const std::chrono::duration<double, std::ratio<60>> elapsed =
      std::chrono::steady_clock::now() - start_;
  return duration_minutes_ > 0 && elapsed.count() > duration_minutes_ ? kDuration : kNone;
}

bool StopRequest::poll() {
  torch::Tensor asked = torch::zeros({2}, torch::kLong);  // reason to stop, whether to save
  asked[0] = local_reason();
  if (world_->rank() == 0 && is_there(save_switch_)) asked[1] = take_save_switch();
  world_->all_reduce(asked, ReduceOp::Max);
  save_ = save_ || asked[1].item<int64_t>() != 0;
  const std::string reasons[] = {reason_, c10::str("--exit-duration-in-mins ", duration_minutes_),
                                 "--kill-switch-file " + kill_switch_.string(), "SIGUSR1",
                                 "SIGTERM"};
  reason_ = reasons[asked[0].item<int64_t>()];
  return !reason_.empty();
}

// A file that cannot be removed would request a save after every step, so it is not checked again.
bool StopRequest::take_save_switch() {
  std::error_code error;
  if (fs::remove(save_switch_, error)) return true;
  std::fprintf(stderr,
               "WARNING: --save-switch-file %s: cannot remove it: %s; it is ignored from here\n",
               save_switch_.c_str(), error.message().c_str());
  save_switch_.clear();
  return false;
}

bool StopRequest::take_save_request() { return std::exchange(save_, false); }

}  // namespace anymesh
