#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "framework/format/whole.h"
#include "framework/util/format.h"
#include "framework/util/peak_memory.h"

namespace anymesh {

// "497.76 MB", "1.49 GB"
inline std::string size_text(double bytes) {
  const bool large = bytes >= 1e9;
  return string_printf("%.2f %s", bytes / (large ? 1e9 : 1e6), large ? "GB" : "MB");
}

// Shows progress on stderr: on a terminal as one line that is rewritten, elsewhere as a line for
// each tenth.
//
//    30% of 1.49 GB, 612.40 MB/s, 2 s left
class ProgressLine {
 public:
  ~ProgressLine() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }
  void show(const Progress& progress) {
    const double done = static_cast<double>(progress.bytes_done),
                 total = static_cast<double>(progress.bytes_total);
    const int percent = total > 0 ? static_cast<int>(100 * done / total) : 100;
    if (!terminal_ && percent / 10 == last_ / 10) return;
    last_ = percent;
    const double rate = progress.seconds > 0 ? done / progress.seconds : 0;
    const double left = rate > 0 ? (total - done) / rate : 0;
    std::fprintf(stderr, "%s%3d%% of %s, %s/s, %.0f s left%s", terminal_ ? "\r" : "", percent,
                 size_text(total).c_str(), size_text(rate).c_str(), left,
                 terminal_ ? "\033[K" : "\n");
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO);
  int last_ = 0;
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
