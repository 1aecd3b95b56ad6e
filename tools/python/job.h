#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "framework/format/io.h"

namespace anymesh::python {

// Work that takes long, for Python:
//
//   Job job(listener);   // listener(bytes_done, bytes_total)
//   const auto report = job.run([&](const ProgressCallback& progress) {
//     return reshard(options, progress);
//   });
//
// The work runs without the GIL in a thread of its own. The calling thread tells the listener how
// far it is, and looks for signals. If either raises (Ctrl-C raises KeyboardInterrupt), the work
// ends at its next call of the callback, and run() throws that exception once it has ended.
using Listener = std::optional<nanobind::callable>;

class Job {
 public:
  explicit Job(const Listener& listener);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  template <class Work>
  auto run(Work work) {
    auto result =
        std::async(std::launch::async, [this, work = std::move(work)] { return work(callback()); });
    wait([&result](std::chrono::milliseconds most) {
      return result.wait_for(most) == std::future_status::ready;
    });
    nanobind::gil_scoped_release released;
    return result.get();
  }

 private:
  // Thrown into the work. It is no std::exception, because work takes those for findings.
  struct Cancelled {};
  struct State;

  ProgressCallback callback() const;
  void wait(const std::function<bool(std::chrono::milliseconds)>& is_ready);

  std::unique_ptr<State> state_;
};

}  // namespace anymesh::python
