#pragma once

#include <cstdio>
#include <string>

#include "framework/format/whole.h"
#include "framework/util/format.h"
#include "framework/util/peak_memory.h"
#include "framework/util/progress_bar.h"

namespace anymesh {

// Shows progress on stderr: on a terminal as a bar, elsewhere as a line for each tenth.
//
//   30 % of 1.49 GB, 612.40 MB/s, ETA 2 s
class ProgressLine {
 public:
  void show(const Progress& progress) {
    bar_.show(progress.part(), progress.text(), progress.eta_s());
    const int tenth = static_cast<int>(10 * progress.part());
    if (bar_.active() || tenth == tenth_) return;
    tenth_ = tenth;
    const std::string text = progress_text(progress.part(), progress.text(), progress.eta_s());
    std::fprintf(stderr, "%s\n", text.c_str());
  }

 private:
  ProgressBar bar_{stderr};
  int tenth_ = 0;
};

// Returns work(progress), and shows such a line until it does.
template <class Work>
auto with_progress(Work work) {
  ProgressLine line;
  const ProgressCallback progress = [&line](const Progress& done) { line.show(done); };
  return work(progress);
}

// "in 0.81 s (612.40 MB/s), peak memory 53 MiB"
inline std::string pace(double bytes, double seconds) {
  return string_printf("in %.2f s (%s/s), peak memory %ld MiB", seconds,
                       size_text(bytes / seconds).c_str(), peak_memory() >> 20);
}

// "148 tensors, 497.76 MB in 1 file in ..."
inline std::string summary(const WrittenWeights& written, double seconds) {
  const auto bytes = static_cast<double>(written.weights);
  return std::to_string(written.tensors) + " tensors, " + size_text(bytes) + " in " +
         std::to_string(written.files.size()) + (written.files.size() == 1 ? " file " : " files ") +
         pace(bytes, seconds);
}

}  // namespace anymesh
