#include <algorithm>
#include <sstream>

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

}  // namespace

Figure cells_figure(const std::string& path) {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // a label and its cells
  size_t longest = 1;
  for (const std::string& line : lines_of(path)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos)
      throw_error(path, ": '", line, "': expected 'label: cell cell ...'");
    auto& [label, cells] = rows.emplace_back(line.substr(0, colon), std::vector<std::string>());
    std::istringstream words(line.substr(colon + 1));
    for (std::string cell; words >> cell;) cells.push_back(cell);
    longest = std::max(longest, cells.size());
  }
  const double width = kWidth / static_cast<double>(longest);
  std::vector<std::string> kinds;
  std::string svg;
  double y = kTop;
  for (const auto& [label, cells] : rows) {
    svg += row_label(y, label);
    double x = kLeft;
    for (const std::string& cell : cells) {
      const std::string kind = kind_of(cell);
      svg += rectangle(x + 1, y, width - 2, kBar,
                       cell == "." ? "empty" : series(place_of(kind, kinds)));
      if (kind != cell) svg += text_within(x, width, y, "on", cell.substr(kind.size()));
      x += width;
    }
    y += kRow;
  }
  return {"Cells",
          string_printf("%zu rows of up to %zu cells, coloured by kind.", rows.size(), longest),
          svg, y, kinds};
}

}  // namespace anymesh
