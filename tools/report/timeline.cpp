#include <algorithm>
#include <cmath>
#include <set>

#include "framework/util/format.h"
#include "tools/plot/svg.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

constexpr size_t kMostRows = 64, kDeepestPhase = 3;
constexpr double kWide = 1000, kHigh = 26;  // the units of a row

// Phases that a reader tells apart by colour, in the order of the key.
constexpr std::pair<const char*, const char*> kKinds[] = {
    {"forward", "forward"},
    {"backward", "backward"},
    {"tp", "tensor parallel communication"},
    {"pp", "pipeline: exchange, and waiting for it"},
    {"dp", "data parallel communication"},
    {"world", "communication across stages"},
    {"optimizer", "gradients and optimizer"},
    {"other", "other"},
};

size_t color_of(const std::string& name) {
  const std::string first = name.substr(0, name.find(' '));
  if (first == "model" || first == "embedding") return 5;  // groups that span stages
  if (first == "gradients") return 6;
  if (first == "weights") return 1;  // the backward's other half
  const auto kind = std::ranges::find(kKinds, first, &std::pair<const char*, const char*>::first);
  return std::min<size_t>(kind - std::begin(kKinds), std::size(kKinds) - 1);
}

// Draws a rank's phases. Those inside another one are lower.
std::string lane(const std::vector<Phase>& phases, double start, double scale) {
  std::string svg;
  std::vector<double> ends;  // of the phases around the next one
  double drawn[kDeepestPhase + 1] = {-1, -1, -1,
                                     -1};  // the right end of each depth's last rectangle
  for (const Phase& phase : phases) {
    while (!ends.empty() && ends.back() <= phase.begin) ends.pop_back();
    const size_t depth = std::min<size_t>(ends.size(), kDeepestPhase);
    ends.push_back(phase.end);
    const double x = (phase.begin - start) * scale, right = (phase.end - start) * scale,
                 inset = 4.0 * static_cast<double>(depth);
    if (right - drawn[depth] < 0.25) continue;  // nothing that can be seen
    drawn[depth] = right;
    const std::string title =
        escaped(phase.name) + string_printf(", %.3f ms from %.3f", (phase.end - phase.begin) / 1e3,
                                            (phase.begin - start) / 1e3);
    svg += element("rect", element("title", title),
                   string_printf("x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" class=\"", x,
                                 inset, std::max(right - x, 0.4), kHigh - 2 * inset) +
                       series(color_of(phase.name)) + "\"") +
           "\n";
  }
  return element(
      "svg", "\n" + svg,
      string_printf("viewBox=\"0 0 %.0f %.0f\" preserveAspectRatio=\"none\" role=\"img\" "
                    "aria-label=\"phases\"",
                    kWide, kHigh));
}

// Returns a row for each of the first ranks, with a rectangle for each phase, and a key.
std::string timeline_of(const Trace& trace) {
  double start = INFINITY, end = 0;
  for (const auto& [rank, phases] : trace) {
    start = std::min(start, phases.front().begin);
    for (const Phase& phase : phases) end = std::max(end, phase.end);
  }
  std::string rows;
  size_t count = 0;
  std::set<size_t> kinds;
  for (const auto& [rank, phases] : trace) {
    if (++count > kMostRows) break;
    for (const Phase& phase : phases) kinds.insert(color_of(phase.name));
    rows += element("div",
                    element("span", "rank " + std::to_string(rank)) +
                        lane(phases, start, kWide / std::max(end - start, 1e-3)),
                    "class=\"lane\"") +
            "\n";
  }
  std::string ruler, key;
  for (const double part : {0.0, 0.5, 1.0})
    ruler += element("span", string_printf("%.3g ms", part * (end - start) / 1e3));
  rows +=
      element("div", "<span></span>" + element("div", ruler, "class=\"ruler\""), "class=\"lane\"");
  for (const size_t kind : kinds) key += element("li", swatch(series(kind)) + kKinds[kind].second);
  if (trace.size() > kMostRows)
    rows += absent(string_printf("ranks drawn: %zu of %zu", kMostRows, trace.size()));
  return element("div", element("ul", key, "class=\"key\"") + rows, "class=\"timeline\"") + "\n";
}

}  // namespace

ReportSection timeline_section(const RunFolder& folder) {
  const auto traced = runs_with(folder, [](const Run& run) { return run.trace.has_value(); });
  if (traced.empty())
    return absent_section("Timeline of a step",
                          "No trace: train with <code>--profile-step N --trace FILE</code>.");
  std::string timelines;
  for (const Run* run : traced) {
    timelines += element("h3", escaped(run->name)) + "\n" + timeline_of(*run->trace);
    if (run->record && !run->record->profile.empty())
      timelines += fold("Phases and operators", element("pre", escaped(run->record->profile)));
  }
  return {"Timeline of a step",
          "A row for each rank. Phases inside another one are lower. Point at a phase for its name "
          "and duration.",
          timelines};
}

}  // namespace anymesh
