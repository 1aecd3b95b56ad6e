#include "tools/plot/save_figure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

constexpr const char* kTimes = "save times, ms, the greatest of all ranks: ";
constexpr size_t kMostSaves = 8;
constexpr double kEnd = 84, kDown = 52;  // room for the total; from a save to the next

struct Save {
  std::string tag;
  std::array<double, 6> parts{};  // ms: copy, gather, serialise, write, fsync, commit
  double stall = 0, total = 0;

  double before_commit() const { return std::accumulate(parts.begin(), parts.end() - 1, 0.0); }
  // A part is the greatest of all ranks, so that together they may take longer than the save.
  double end() const { return std::max(total, before_commit() + parts.back()); }
};

// Returns the folder's name of "saved checkpoints/global_step3 in 480 ms (...".
std::string tag_of(const std::string& line) {
  const std::string folder = line.substr(6, line.rfind(" in ") - 6);
  return folder.substr(folder.rfind('/') + 1);
}

std::vector<Save> read_saves(const std::string& path) {
  std::vector<Save> saves;
  std::string tag;
  for (const std::string& line : lines_of(path)) {
    if (line.starts_with("saved ")) tag = tag_of(line);
    if (!line.starts_with(kTimes)) continue;
    Save save{.tag = tag};
    auto& [copy, gather, serialise, write, fsync, commit] = save.parts;
    const int read =
        std::sscanf(line.c_str() + std::string(kTimes).size(),
                    "copy %lf, gather %lf, serialise %lf, write %lf, fsync %lf, commit %lf; stall "
                    "%lf, total %lf",
                    &copy, &gather, &serialise, &write, &fsync, &commit, &save.stall, &save.total);
    const auto is_time = [](double ms) { return ms >= 0 && ms < 1e12; };
    if (read != 8 || !std::ranges::all_of(save.parts, is_time) || !is_time(save.stall) ||
        !is_time(save.total) || !(save.end() > 0))
      throw_error(path, ": '", line,
                  "': expected eight times as pretrain_gpt --report-save prints");
    saves.push_back(save);
  }
  if (saves.empty())
    throw_error(path, ": expected lines 'save times, ms, ...': run with --save and --report-save");
  if (saves.size() > kMostSaves) saves.erase(saves.begin(), saves.end() - kMostSaves);
  return saves;
}

// Draws the parts one after the other, and the commit at the end; below them when training stood
// still.
std::string timeline(const Save& save, const Axis& time, double y) {
  std::string svg = rectangle(time.from, y, time.at(save.end()) - time.from, kBar, "empty");
  double begin = 0;
  for (size_t i = 0; i < save.parts.size(); ++i) {
    if (i + 1 == save.parts.size()) begin = save.end() - save.parts[i];
    const double x = time.at(begin), width = time.at(begin + save.parts[i]) - x;
    const std::string text = string_printf("%.1f", save.parts[i]);
    if (save.parts[i] > 0) svg += rectangle(x, y, std::max(width - 0.6, 0.8), kBar, series(i));
    if (width > 8 + 6.5 * static_cast<double>(text.size()))
      svg += text_at(x + width / 2, y + 16, "on mid", text);
    begin += save.parts[i];
  }
  const double stall = std::min(save.stall, save.end());
  return svg + rectangle(time.from, y + kBar + 3, time.at(save.end()) - time.from, 6, "empty") +
         rectangle(time.from, y + kBar + 3, time.at(stall) - time.from, 6, series(6)) +
         text_at(time.at(save.end()) + 8, y + 17, "label", string_printf("%.0f ms", save.total));
}

}  // namespace

Figure save_figure(const std::string& path) {
  const std::vector<Save> saves = read_saves(path);
  Axis time{kLeft, kLeft + kWidth - kEnd, 0, 0};
  for (const Save& save : saves) time.include(save.end());
  const double bottom = kTop + kDown * static_cast<double>(saves.size()) - 8;
  std::string svg, seen;
  for (const double tick : nice_ticks(0, time.high, 8)) {
    svg += line_at(time.at(tick), kTop - 6, time.at(tick), bottom, "grid");
    svg += text_at(time.at(tick), bottom + 12, "tick mid", string_printf("%g", tick));
  }
  svg += text_at(kLeft - 12, bottom + 12, "tick end", "ms");
  double y = kTop;
  for (const Save& save : saves) {
    const auto& [copy, gather, serialise, write, fsync, commit] = save.parts;
    const size_t number = save.tag.find_last_not_of("0123456789") + 1;
    svg += text_at(kLeft - 12, y + 17, "label end", "step " + save.tag.substr(number)) +
           timeline(save, time, y);
    seen += string_printf(
        "%s: copy %.1f ms, gather %.1f, serialise %.1f, write %.1f, fsync %.1f, commit %.1f; "
        "training stood still for %.1f of %.1f ms. ",
        save.tag.c_str(), copy, gather, serialise, write, fsync, commit, save.stall, save.total);
    y += kDown;
  }
  svg += text_at(
      kLeft, bottom + 34, "tick",
      "each part is a sum over files, the greatest of all ranks; thin: training stands still");
  seen.pop_back();
  return {"Saves, from call to commit",
          seen,
          svg,
          bottom + 14,
          {"copy", "gather", "serialise", "write", "fsync", "commit", "stall"}};
}

}  // namespace anymesh
