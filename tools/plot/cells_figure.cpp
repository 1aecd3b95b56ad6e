#include "tools/plot/cells_figure.h"

#include <algorithm>
#include <sstream>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/svg.h"

namespace anymesh {

Figure cells_figure(const std::string& path) {
  struct Row {
    std::string label;
    std::vector<std::string> cells;  // "." is an empty one
  };
  std::vector<Row> rows;
  size_t longest = 1;
  std::vector<std::string> kinds;  // in the order in which they appear
  for (const std::string& line : lines_of(path)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos)
      throw_error(path, ": '", line, "': expected 'label: cell cell ...'");
    Row& row = rows.emplace_back(Row{line.substr(0, colon), {}});
    std::istringstream words(line.substr(colon + 1));
    for (std::string cell; words >> cell; row.cells.push_back(cell))
      if (cell != "." && std::ranges::find(kinds, cell) == kinds.end()) kinds.push_back(cell);
    longest = std::max(longest, row.cells.size());
  }
  const double width = kWidth / static_cast<double>(longest);
  std::string svg;
  double y = kTop;
  for (const auto& [label, cells] : rows) {
    svg += text_at(kLeft - 12, y + 17, "label end", label);
    for (size_t c = 0; c < cells.size(); ++c) {
      const auto kind = std::ranges::find(kinds, cells[c]);
      svg += rectangle(kLeft + width * static_cast<double>(c) + 1, y, width - 2, kBar,
                       kind == kinds.end() ? std::string("empty") : series(kind - kinds.begin()));
    }
    y += kRow;
  }
  return {"Cells",
          string_printf("%zu rows of up to %zu cells, coloured by kind.", rows.size(), longest),
          svg, y, kinds};
}

}  // namespace anymesh
