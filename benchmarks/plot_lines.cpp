// Draws columns of CSVs as lines over logarithmic axes, two panels a row in one self-contained SVG:
//
//   plot_lines OUTPUT.svg TITLE "HEADING|FILE.csv|X COLUMN|Y COLUMN|Y COLUMN..." ...
//
// Columns are found by their names, which are the labels too. Values without a logarithm are left
// out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "framework/util/format.h"
#include "tools/plot/svg.h"

using namespace anymesh;

namespace {

// Sizes in pixels.
constexpr double kWidth = 430, kHeight = 250, kLeft = 66, kTop = 128, kAcross = 530, kDown = 370;

using Words = std::vector<std::string>;
using Powers = std::vector<double>;  // of ten

Words split(const std::string& text, char separator) {
  std::istringstream in(text);
  Words words;
  for (std::string word; std::getline(in, word, separator);) words.push_back(word);
  return words;
}

std::vector<Powers> read_columns(const std::string& path, const Words& names) {
  std::ifstream file(path);
  std::string row;
  if (!std::getline(file, row)) throw std::runtime_error(path + ": cannot be read");
  const Words header = split(row, ',');
  std::vector<size_t> places;
  for (const std::string& name : names) {
    places.push_back(std::find(header.begin(), header.end(), name) - header.begin());
    if (places.back() == header.size())
      throw std::runtime_error(path + ": no column '" + name + "' in " + row);
  }
  std::vector<Powers> columns(names.size());
  while (std::getline(file, row)) {
    const Words fields = split(row, ',');
    if (fields.size() != header.size()) throw std::runtime_error(path + ": wrong width: " + row);
    for (size_t i = 0; i < names.size(); ++i)
      columns[i].push_back(std::log10(std::atof(fields[places[i]].c_str())));
  }
  return columns;
}

void include(Axis& axis, const Powers& powers) {
  for (const double power : powers) {
    if (!std::isfinite(power)) continue;
    axis.include(power - 0.06);
    axis.include(power + 0.06);
  }
}

// Returns every decade, and twice and five times it while there are few.
Powers ticks(const Axis& axis) {
  Powers powers;
  for (double decade = std::floor(axis.low); decade <= axis.high; ++decade)
    for (const int multiple : {1, 2, 5}) {
      const double power = decade + std::log10(multiple);
      if (power >= axis.low && power <= axis.high && (multiple == 1 || axis.high - axis.low < 3))
        powers.push_back(power);
    }
  return powers;
}

std::string path(const std::string& points, double width, size_t series) {
  return path_at(points, "stroke-linecap=\"round\" stroke-width=\"" + px(width) + "\" class=\"" +
                             anymesh::series(series) + "\"");
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  for (const double tick : ticks(x)) {
    svg += line_at(x.at(tick), y.from, x.at(tick), y.to, "grid");
    svg += text_at(x.at(tick), y.from + 18, "tick mid", string_printf("%g", std::pow(10, tick)));
  }
  for (const double tick : ticks(y)) {
    svg += line_at(x.from, y.at(tick), x.to, y.at(tick), "grid");
    svg +=
        text_at(x.from - 10, y.at(tick) + 4, "tick end", string_printf("%g", std::pow(10, tick)));
  }
  return svg + line_at(x.from, y.from, x.to, y.from, "axis");
}

std::string panel(const std::string& argument, double left, double top) {
  const Words words = split(argument, '|');
  if (words.size() < 4) throw std::runtime_error(argument + ": not HEADING|FILE|X|Y...");
  const auto columns = read_columns(words[1], Words(words.begin() + 2, words.end()));
  Axis x{left, left + kWidth}, y{top + kHeight, top};
  include(x, columns[0]);
  for (size_t i = 1; i < columns.size(); ++i) include(y, columns[i]);
  if (x.low > x.high || y.low > y.high) throw std::runtime_error(argument + ": no points");
  for (Axis* axis : {&x, &y}) axis->high = std::max(axis->high, axis->low + 1);
  std::string svg = text_at(left, top - 40, "head", words[0]) + grid(x, y) +
                    text_at(left + kWidth / 2, y.from + 38, "tick mid", words[2]);
  for (size_t i = 1; i < columns.size(); ++i) {
    std::string line, dots;
    for (size_t j = 0; j < columns[0].size(); ++j) {
      if (!std::isfinite(columns[0][j]) || !std::isfinite(columns[i][j])) continue;
      const std::string at = px(x.at(columns[0][j])) + " " + px(y.at(columns[i][j]));
      line += (line.empty() ? "M" : "L") + at;
      dots += "M" + at + "h0";
    }
    svg += path("M" + px(left) + " " + px(top - 20) + "h16", 3, i - 1) +
           text_at(left + 22, top - 16, "tick", words[i + 2]) + path(line, 2, i - 1) +
           path(dots, 7, i - 1);
    left += 40 + 6.2 * static_cast<double>(words[i + 2].size());
  }
  return svg;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 4) throw std::runtime_error("OUTPUT.svg TITLE \"HEADING|FILE.csv|X|Y|Y...\" ...");
    const int panels = argc - 3, rows = (panels + 1) / 2;
    std::string seen = "Lines over logarithmic axes.";
    for (int i = 0; i < panels; ++i) seen += " " + split(std::string(argv[3 + i]), '|').at(0) + ".";
    std::string svg =
        svg_begin(kLeft + kAcross * std::min(panels, 2), kTop + kDown * rows - 60, argv[2], seen) +
        text_at(kLeft, 48, "title", argv[2]);
    for (int i = 0; i < panels; ++i)
      svg += panel(argv[3 + i], kLeft + kAcross * (i % 2), kTop + kDown * (i / 2));
    std::ofstream file(argv[1], std::ios::binary);
    file << svg << "</svg>\n";
    file.close();
    if (!file) throw std::runtime_error(std::string(argv[1]) + ": cannot be written");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plot_lines: %s\n", error.what());
    return 2;
  }
}
