#include "tools/plot/figure.h"

#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

// Draws a coloured square for each name, from left to right.
std::string squares(const std::vector<std::string>& names, double y) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    svg += rectangle(x, y - 11, 13, 13, series(i)) + text_at(x + 20, y, "label", names[i]);
    x += 44 + 7.2 * static_cast<double>(names[i].size());
  }
  return svg;
}

}  // namespace

std::string figure_svg(const Figure& figure, const std::string& title) {
  const std::string& shown = title.empty() ? figure.title : title;
  return svg_begin(kLeft + figure.width + kMargin,
                   figure.bottom + (figure.legend.empty() ? 26 : 62), shown, figure.seen) +
         text_at(kLeft, 36, "title", shown) + figure.body +
         squares(figure.legend, figure.bottom + 42) + "</svg>\n";
}

std::vector<std::string> lines_of(const std::string& path) {
  InputFile file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  if (lines.empty()) throw_error(path, ": no lines to draw");
  return lines;
}

}  // namespace anymesh
