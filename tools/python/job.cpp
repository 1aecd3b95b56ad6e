#include "tools/python/job.h"

#include <atomic>
#include <mutex>

namespace anymesh::python {

namespace nb = nanobind;

struct Job::State {
  Listener listener;
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  std::optional<Progress> latest;  // that the listener has not been told

  void tell() {
    std::optional<Progress> now;
    {
      const std::lock_guard lock(mutex);
      now.swap(latest);
    }
    if (now && listener) (*listener)(now->bytes_done, now->bytes_total);
  }
};

Job::Job(const Listener& listener) : state_(std::make_unique<State>()) {
  state_->listener = listener;
}

Job::~Job() = default;

ProgressCallback Job::callback() const {
  return [state = state_.get()](const Progress& progress) {
    if (state->cancelled) throw Cancelled();
    const std::lock_guard lock(state->mutex);
    state->latest = progress;
  };
}

void Job::wait(const std::function<bool(std::chrono::milliseconds)>& is_ready) {
  constexpr std::chrono::milliseconds kLook(50);
  const auto ready = [&] {
    nb::gil_scoped_release released;
    return is_ready(kLook);
  };
  try {
    while (!ready()) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      state_->tell();
    }
    state_->tell();
  } catch (...) {
    state_->cancelled = true;
    while (!ready()) continue;
    throw;
  }
}

}  // namespace anymesh::python
