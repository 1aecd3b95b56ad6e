// SVG elements as text, in pixels, for our plots. The style sheet in svg_begin() gives classes
// their looks, on a light and on a dark background: title, head, label, tick, mid (centred), end
// (flush right) and on (upon a series' colour) for texts; grid and axis for lines; empty for
// rectangles, and pale beside another; series(i) for rectangles and paths.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace anymesh {

// Begins an SVG, which the caller ends with "</svg>". Title and description are its text
// alternatives.
std::string svg_begin(double width, double height, const std::string& title,
                      const std::string& description);
// Writes to --output, which may be an earlier SVG of ours, but neither another file nor one of
// `inputs`.
void write_svg(const std::string& path, const std::string& svg,
               const std::vector<std::filesystem::path>& inputs);

std::string px(double value);
std::string path_at(const std::string& points, const std::string& attributes);
std::string rectangle(double x, double y, double width, double height, const std::string& style);
std::string text_at(double x, double y, const std::string& style, const std::string& text);
std::string line_at(double x1, double y1, double x2, double y2, const std::string& style);

// Maps the values from `low` to `high` to the pixels between `from` and `to`.
struct Axis {
  double from, to, low = INFINITY, high = -INFINITY;

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

// Returns about `count` ticks at multiples of 1, 2 or 5 times a power of ten inside [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

// Returns the class of a series' colour. Repeats from 8 on.
std::string series(size_t index);

}  // namespace anymesh
