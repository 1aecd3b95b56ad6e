#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "framework/format/whole.h"
#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/util/progress_bar.h"

namespace anymesh {

// Shows progress on stderr: on a terminal as a bar, elsewhere as a line for each tenth. Without a
// total it shows the amount, elsewhere once a minute.
//
//   30 % of 1.49 GB, 612.40 MB/s, ETA 2 s
//   36.74 GB, 612.40 MB/s
class ProgressLine {
 public:
  explicit ProgressLine(std::FILE* stream = stderr) : stream_(stream), bar_(stream) {}

  void show(const Progress& progress) {
    const bool total = progress.bytes_total > 0;
    const double part = std::min(1.0, progress.part()), eta_s = std::max(0.0, progress.eta_s());
    const std::string text = progress.text();
    if (bar_.active()) return total ? bar_.show(part, text, eta_s) : bar_.show(text);
    const auto mark = static_cast<int64_t>(total ? 10 * part : progress.seconds / 60);
    if (std::exchange(mark_, mark) == mark) return;
    std::fprintf(stream_, "%s\n", (total ? progress_text(part, text, eta_s) : text).c_str());
  }

 private:
  std::FILE* stream_;
  ProgressBar bar_;
  int64_t mark_ = 0;  // the tenth or the minute that the last line showed
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
