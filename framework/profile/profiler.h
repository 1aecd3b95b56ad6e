#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace anymesh {

// Records where the time of a piece of work goes, on this rank: in the phases that the code marks
// and in LibTorch's operators, and on a GPU its kernels (kernels.h).
//
//   { RECORD_USER_SCOPE("forward"); ... }   <ATen/record_function.h>; costs little unrecorded
//
//   Profiler profiler;                          records from here
//   engine.train_batch(...);
//   std::vector<Span> spans = profiler.stop();  ... to here
struct Span {
  std::string name;
  bool phase = false;          // marked by the code; else an operator,
  bool kernel = false;         // or a kernel of the GPU, beside the thread's spans
  int64_t begin = 0, end = 0;  // nanoseconds since the profiler began
  int64_t children = 0;        // nanoseconds in spans of the same kind inside this one
  int depth = 0;               // number of spans, of either kind, around it
  int64_t micro_batch = -1;    // of a phase; -1 = it has none
  struct Input {
    std::string dtype;
    std::vector<int64_t> sizes;
  };
  std::vector<Input> inputs;  // the tensors that an operator was given; a verb's payload
};

// Records the thread that makes it; on a CPU, backward runs on that thread as well. A thread may
// have one at a time.
class Profiler {
 public:
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Returns the spans that have ended, in the order in which they began.
  std::vector<Span> stop();

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
  uint64_t callback_ = 0;
};

}  // namespace anymesh
