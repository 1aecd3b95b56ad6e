#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

// Returns "F" of "F12".
std::string kind_of(const std::string& cell) {
  return cell.substr(0, cell.find_last_not_of("0123456789") + 1);
}

// Returns the place of a cell's kind among those that appeared before, and adds a new one.
size_t place_of(const std::string& kind, std::vector<std::string>& kinds) {
  const auto found = std::ranges::find(kinds, kind);
  if (found != kinds.end()) return found - kinds.begin();
  kinds.push_back(kind);
  return kinds.size() - 1;
}

using Rows = std::vector<std::pair<std::string, std::vector<std::string>>>;  // a label, its cells

Rows rows_of(const std::string& path) {
  Rows rows;
  for (const std::string& line : lines_of(path)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos)
      throw_error(path, ": '", line, "': expected 'label: cell cell ...'");
    auto& [label, cells] = rows.emplace_back(line.substr(0, colon), std::vector<std::string>());
    std::istringstream words(line.substr(colon + 1));
    for (std::string cell; words >> cell;) cells.push_back(cell);
  }
  return rows;
}

size_t longest_of(const Rows& rows) {
  size_t longest = 1;
  for (const auto& [label, cells] : rows) longest = std::max(longest, cells.size());
  return longest;
}

std::string drawn_cell(double x, double y, double width, const std::string& cell,
                       std::vector<std::string>& kinds) {
  const std::string kind = kind_of(cell);
  return rectangle(x + 1, y, width - 2, kBar,
                   cell == "." ? "empty" : series(place_of(kind, kinds))) +
         (kind == cell ? "" : text_within(x, width, y, "on", cell.substr(kind.size())));
}

}  // namespace

Figure cells_figure(const std::string& path) {
  const Rows rows = rows_of(path);
  const size_t longest = longest_of(rows);
  const double width = kWidth / static_cast<double>(longest);
  std::vector<std::string> kinds;
  std::string svg;
  double y = kTop;
  for (const auto& [label, cells] : rows) {
    svg += row_label(y, label);
    double x = kLeft;
    for (const std::string& cell : cells) {
      svg += drawn_cell(x, y, width, cell, kinds);
      x += width;
    }
    y += kRow;
  }
  return {"Cells",
          string_printf("%zu rows of up to %zu cells, coloured by kind.", rows.size(), longest),
          svg, y, kinds};
}

Figure travel_figure(const std::string& path) {
  constexpr double kPitch = 66;
  const Rows rows = rows_of(path);
  const double width = kWidth / static_cast<double>(longest_of(rows));
  std::vector<std::string> kinds;
  std::map<std::string, double> before;  // the middles of the last row's cells
  std::string cells_svg, ways;
  double y = kTop;
  for (const auto& [label, cells] : rows) {
    cells_svg += row_label(y, label);
    std::map<std::string, double> here;
    double x = kLeft;
    for (const std::string& cell : cells) {
      if (cell != "|") {
        cells_svg += drawn_cell(x, y, width, cell, kinds);
        here[cell] = x + width / 2;
        if (const auto from = before.find(cell); from != before.end())
          ways += path_at("M" + px(from->second) + " " + px(y - kPitch + kBar) + "L" +
                              px(here[cell]) + " " + px(y),
                          "class=\"" + series(place_of(kind_of(cell), kinds)) + "\"");
      }
      x += width;
    }
    before = std::move(here);
    y += kPitch;
  }
  return {"Travel",
          string_printf("%zu rows of cells, coloured by kind. Lines follow each cell to the next "
                        "row.",
                        rows.size()),
          ways + cells_svg, y - kPitch + kRow, kinds};
}

}  // namespace anymesh
