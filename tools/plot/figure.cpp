#include "tools/plot/figure.h"

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"

namespace anymesh {

std::string figure_svg(const Figure& figure, const std::string& title) {
  const std::string& shown = title.empty() ? figure.title : title;
  std::string svg =
      svg_begin(kLeft + figure.width + kMargin, figure.bottom + (figure.legend.empty() ? 26 : 62),
                shown, figure.seen) +
      text_at(kLeft, 36, "title", shown) + figure.body;
  double x = kLeft;  // of the legend's next square
  const double y = figure.bottom + 42;
  for (size_t i = 0; i < figure.legend.size(); ++i) {
    const std::string& name = figure.legend[i];
    svg += rectangle(x, y - 11, 13, 13, series(i)) + text_at(x + 20, y, "label", name);
    x += 44 + 7.2 * static_cast<double>(name.size());
  }
  return svg + "</svg>\n";
}

std::vector<std::string> lines_of(const std::string& path) {
  InputFile file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  if (lines.empty()) throw_error(path, ": no lines to draw");
  return lines;
}

std::string row_label(double y, const std::string& text) {
  return text_at(kLeft - 12, y + 17, "label end", text);
}

std::string text_within(double x, double width, double y, const std::string& style,
                        const std::string& text) {
  const bool fits = width > 4 + 6.5 * static_cast<double>(text.size());
  return fits ? text_at(x + width / 2, y + 16, style + " mid", text) : "";
}

std::string ruler(const Axis& axis, int count, double bottom, double below) {
  std::string svg;
  for (const double tick : nice_ticks(axis.low, axis.high, count)) {
    const double x = axis.at(tick);
    svg += line_at(x, kTop - 6, x, bottom, "grid") +
           text_at(x, below, "tick mid", string_printf("%g", tick));
  }
  return svg;
}

}  // namespace anymesh
