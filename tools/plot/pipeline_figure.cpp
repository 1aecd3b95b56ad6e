#include "tools/plot/pipeline_figure.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

constexpr int64_t kMostRanks = 64;
constexpr double kBusy = 74;  // room for a rank's share, right of its row

// The forward or the backward of a micro-batch.
struct Phase {
  bool backward = false;
  int64_t micro_batch = 0;
  double begin = 0, end = 0;  // ms
};

using PhasesOfRanks = std::map<int64_t, std::vector<Phase>>;

double number_in(const nlohmann::json& event, const char* key) {
  const nlohmann::json value = member(event, key);
  return value.is_number() ? value.get<double>() : NAN;
}

int64_t whole_number_in(const nlohmann::json& event, const char* key, int64_t most) {
  const nlohmann::json value = member(event, key);
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(most);
  return fits ? value.get<int64_t>() : -1;
}

PhasesOfRanks read_trace(const std::string& path) {
  const auto trace = nlohmann::json::parse(bounded(read_file(path), path), nullptr, false);
  const nlohmann::json events = member(trace, "traceEvents");
  if (!events.is_array())
    throw_error(path,
                ": expected JSON with an array 'traceEvents', as pretrain_gpt --trace writes");
  PhasesOfRanks ranks;
  for (size_t i = 0; i < events.size(); ++i) {
    const nlohmann::json &event = events[i], name = member(event, "name");
    if (member(event, "cat") != "phase" || (name != "forward" && name != "backward")) continue;
    const int64_t rank = whole_number_in(event, "pid", kMostRanks - 1),
                  micro_batch = whole_number_in(member(event, "args"), "micro_batch", 1 << 20);
    const double begin = number_in(event, "ts") / 1e3, length = number_in(event, "dur") / 1e3;
    if (rank < 0 || micro_batch < 0 || !(std::abs(begin) < 1e12) || !(length >= 0 && length < 1e12))
      throw_error(path, ": event ", i, ", a ", name.get<std::string>(), ": expected a 'pid' below ",
                  kMostRanks, ", numbers 'ts' and 'dur', and a 'micro_batch' among 'args'");
    ranks[rank].push_back({name == "backward", micro_batch, begin, begin + length});
  }
  if (ranks.empty()) throw_error(path, ": expected events 'forward' and 'backward', found none");
  return ranks;
}

// Draws a row of cells, with their micro-batches' numbers where there is room.
std::string cells_of(const std::vector<Phase>& phases, const Axis& time, double y) {
  std::string svg = rectangle(time.from, y, time.to - time.from, kBar, "empty");
  for (const Phase& phase : phases) {
    const double x = time.at(phase.begin), width = time.at(phase.end) - x;
    const std::string number = std::to_string(phase.micro_batch);
    svg += rectangle(x, y, std::max(width - 0.6, 0.4), kBar, series(phase.backward));
    if (width >= 4 + 6.5 * static_cast<double>(number.size()))
      svg += text_at(x + width / 2, y + 16, "on mid", number);
  }
  return svg;
}

}  // namespace

Figure pipeline_figure(const std::string& path) {
  const PhasesOfRanks ranks = read_trace(path);
  Axis time{kLeft, kLeft + kWidth - kBusy};
  for (const auto& [rank, phases] : ranks)
    for (const Phase& phase : phases) {
      time.include(phase.begin);
      time.include(phase.end);
    }
  if (!(time.high > time.low)) throw_error(path, ": expected phases that take time");
  const double bottom = kTop + kRow * static_cast<double>(ranks.size()), start = time.low;
  std::string svg, seen = "A row for each rank, from the first forward to the last backward.";
  for (const double tick : nice_ticks(0, time.high - start, 8)) {
    const double x = time.at(start + tick);
    svg += line_at(x, kTop - 6, x, bottom, "grid");
    svg += text_at(x, bottom + 12, "tick mid", string_printf("%g", tick));
  }
  svg += text_at(kLeft - 12, bottom + 12, "tick end", "ms");
  double y = kTop;
  for (const auto& [rank, phases] : ranks) {
    double busy = 0;
    for (const Phase& phase : phases) busy += phase.end - phase.begin;
    const double share = 100 * busy / (time.high - start);
    svg += text_at(kLeft - 12, y + 17, "label end", "rank " + std::to_string(rank));
    svg += cells_of(phases, time, y);
    svg += text_at(time.to + 10, y + 17, "label", string_printf("%.0f %% busy", share));
    seen += string_printf(" Rank %ld is busy for %.0f %% of the time.", rank, share);
    y += kRow;
  }
  return {"Forward and backward of each micro-batch",
          seen,
          svg,
          bottom,
          {"forward of a micro-batch", "backward"}};
}

}  // namespace anymesh
