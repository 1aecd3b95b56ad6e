#include <algorithm>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/trace.h"

namespace anymesh {
namespace {

constexpr size_t kMostLanes = 64;
constexpr double kBusy = 74;  // room for a rank's share, right of its row
constexpr const char* kPhases[] = {"forward", "backward", "weights"};

size_t place_of(const Phase& phase) {
  return std::ranges::find(kPhases, phase.name) - std::begin(kPhases);
}

}  // namespace

Figure pipeline_figure(const std::string& path) {
  Trace ranks = read_trace(path);
  Axis time{kLeft, kLeft + kWidth - kBusy};  // in microseconds
  for (auto& [rank, phases] : ranks) {
    std::erase_if(phases, [](const Phase& phase) {
      return phase.micro_batch < 0 || place_of(phase) == std::size(kPhases);
    });
    for (const Phase& phase : phases) time.include(phase.begin), time.include(phase.end);
  }
  if (!(time.high > time.low))
    throw_error(path, ": expected phases 'forward' and 'backward' that take time");
  if (ranks.size() > kMostLanes)
    throw_error(path, ": has ", ranks.size(), " ranks, a figure draws up to ", kMostLanes);
  const double bottom = kTop + kRow * static_cast<double>(ranks.size());
  const Axis ms{time.from, time.to, 0, (time.high - time.low) / 1e3};
  std::string svg = ruler(ms, 8, bottom, bottom + 12) +
                    text_at(kLeft - 12, bottom + 12, "tick end", "ms"),
              seen = "A row for each rank, from the first forward to the last backward.";
  double y = kTop;
  bool splits = false;
  for (const auto& [rank, phases] : ranks) {
    svg += row_label(y, "rank " + std::to_string(rank)) +
           rectangle(time.from, y, time.to - time.from, kBar, "empty");
    double busy = 0;
    for (const Phase& phase : phases) {
      const double x = time.at(phase.begin), width = time.at(phase.end) - x;
      svg += rectangle(x, y, std::max(width - 0.6, 0.4), kBar, series(place_of(phase))) +
             text_within(x, width, y, "on", std::to_string(phase.micro_batch));
      busy += phase.end - phase.begin;
      splits = splits || place_of(phase) == 2;
    }
    const double share = 100 * busy / (time.high - time.low);
    svg += text_at(time.to + 10, y + 17, "label", string_printf("%.0f %% busy", share));
    seen += string_printf(" Rank %d is busy for %.0f %% of the time.", rank, share);
    y += kRow;
  }
  std::vector<std::string> key{"forward of a micro-batch", "backward"};
  if (splits) key.push_back("gradients of weights");
  return {"Forward and backward of each micro-batch", seen, svg, bottom, key};
}

}  // namespace anymesh
