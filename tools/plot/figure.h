// The part that all kinds of figures share. A kind is a function `Figure KIND_figure(path)` in a file
// of its own, and a row of the table in plot_figure.cpp.
#pragma once

#include <string>
#include <vector>

namespace anymesh {

// Sizes in pixels. A row's label ends left of kLeft; the first row begins at kTop.
constexpr double kLeft = 92, kTop = 64, kRow = 34, kBar = 24, kWidth = 640, kMargin = 24;

struct Figure {
  std::string title;  // if the user gives none
  std::string seen;   // sentences that say what is to be seen, for readers who can't see it
  std::string body;   // SVG elements (svg.h) between x = kLeft and kLeft + width, from kTop on
  double bottom = 0;  // y of the body's end
  std::vector<std::string> legend = {};  // names of series(0), (1), ...
  double width = kWidth;
};

std::string figure_svg(const Figure& figure, const std::string& title);

// Returns the lines of a file that are not empty. Throws if there are none.
std::vector<std::string> lines_of(const std::string& path);

}  // namespace anymesh
