#include <algorithm>
#include <cmath>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/loss_csv.h"

namespace anymesh {
namespace {

struct Bar {
  std::string label;
  std::vector<double> parts;
  double sum = 0;
};

// Returns the names of the parts, which `bars` get.
std::vector<std::string> read_bars(const std::string& path, std::vector<Bar>& bars) {
  const std::vector<std::string> lines = lines_of(path);
  std::vector<std::string> names = split_row(lines[0]);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = split_row(lines[i]);
    if (fields.size() != names.size() || fields.size() < 2)
      throw_error(path, ": '", lines[i], "': expected a label and a number for each of '", lines[0],
                  "'");
    Bar& bar = bars.emplace_back(Bar{names[0] + " " + fields[0], {}});
    for (size_t f = 1; f < fields.size(); ++f)
      bar.sum +=
          bar.parts.emplace_back(number_from_zero(path + ": '" + fields[f] + "'", fields[f]));
  }
  names.erase(names.begin());
  return names;
}

// "264" or "1.750": a count has no decimals.
std::string sum_text(double sum) {
  return string_printf(sum == std::floor(sum) ? "%.0f" : "%.3f", sum);
}

}  // namespace

Figure bars_figure(const std::string& path) {
  std::vector<Bar> bars;
  const std::vector<std::string> names = read_bars(path, bars);
  Axis axis{kLeft, kLeft + kWidth - 60, 0, 0};
  for (const Bar& bar : bars) axis.include(bar.sum);
  if (axis.high == 0) throw_error("all bars are of length 0");
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  std::string svg = ruler(axis, 6, bottom, bottom + 14),
              seen = std::to_string(bars.size()) + " bars:";
  double y = kTop;
  for (const auto& [label, parts, sum] : bars) {
    svg += row_label(y, label);
    double begin = 0;
    for (size_t i = 0; i < parts.size(); begin += parts[i++])
      svg += rectangle(axis.at(begin), y, axis.at(parts[i]) - kLeft, kBar, series(i));
    svg += text_at(axis.at(sum) + 8, y + 17, "label", sum_text(sum));
    seen += " " + label + " " + sum_text(sum) + ";";
    y += kRow;
  }
  seen.back() = '.';
  return {"Bars", seen, svg, bottom, names};
}

}  // namespace anymesh
