#include <algorithm>
#include <array>
#include <numeric>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

using Save = RecordedRun::Save;

constexpr size_t kMostSaves = 8;
constexpr double kEnd = 84, kSaveRow = 52;  // room for the total; from a save to the next

// A part is the greatest of all ranks, so that together they may take longer than the save.
double end_of(const Save& save) {
  return std::max(save.total, std::accumulate(save.parts.begin(), save.parts.end(), 0.0));
}

// Draws the parts one after the other, and the commit at the end; below them when training stood
// still.
std::string timeline(const Save& save, const Axis& time, double y) {
  std::string svg = rectangle(time.from, y, time.at(end_of(save)) - time.from, kBar, "empty");
  double begin = 0;
  for (size_t i = 0; i < save.parts.size(); ++i) {
    if (i + 1 == save.parts.size()) begin = end_of(save) - save.parts[i];
    const double x = time.at(begin), width = time.at(begin + save.parts[i]) - x;
    if (save.parts[i] > 0) svg += rectangle(x, y, std::max(width - 0.6, 0.8), kBar, series(i));
    svg += text_within(x, width, y, "on", string_printf("%.1f", save.parts[i]));
    begin += save.parts[i];
  }
  const double stall = std::min(save.stall, end_of(save));
  return svg + rectangle(time.from, y + kBar + 3, time.at(end_of(save)) - time.from, 6, "empty") +
         rectangle(time.from, y + kBar + 3, time.at(stall) - time.from, 6, series(6)) +
         text_at(time.at(end_of(save)) + 8, y + 17, "label", string_printf("%.0f ms", save.total));
}

}  // namespace

Figure save_figure(const RecordedRun& recorded) {
  std::vector<Save> saves = recorded.saves;
  std::erase_if(saves, [](const Save& save) { return end_of(save) == 0; });
  if (saves.empty()) throw_error("has no saves to draw: run pretrain_gpt with --save");
  if (saves.size() > kMostSaves) saves.erase(saves.begin(), saves.end() - kMostSaves);
  Axis time{kLeft, kLeft + kWidth - kEnd, 0, 0};
  for (const Save& save : saves) time.include(end_of(save));
  const double bottom = kTop + kSaveRow * static_cast<double>(saves.size()) - 8;
  std::string svg = ruler(time, 8, bottom, bottom + 12) +
                    text_at(kLeft - 12, bottom + 12, "tick end", "ms"),
              seen;
  double y = kTop;
  for (const Save& save : saves) {
    svg += row_label(y, "step " + std::to_string(save.iteration)) + timeline(save, time, y);
    seen += "step " + std::to_string(save.iteration) + ":";
    for (size_t i = 0; i < kSaveParts.size(); ++i)
      seen += string_printf(" %s %.1f ms,", kSaveParts[i], save.parts[i]);
    seen += string_printf(" training stood still for %.1f of %.1f ms. ", save.stall, save.total);
    y += kSaveRow;
  }
  svg += text_at(
      kLeft, bottom + 34, "tick",
      "each part is a sum over files, the greatest of all ranks; thin: training stands still");
  seen.pop_back();
  std::vector<std::string> legend(kSaveParts.begin(), kSaveParts.end());
  legend.emplace_back("stall");
  return {"Saves, from call to commit", seen, svg, bottom + 14, legend};
}

}  // namespace anymesh
