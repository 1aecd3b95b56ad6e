#include "tools/plot/cells_figure.h"

#include <algorithm>
#include <sstream>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/svg.h"

namespace anymesh {

namespace {

struct CellRow {
  std::string label;
  std::vector<std::string> cells;
};

// Returns "F" of "F12".
std::string kind_of(const std::string& cell) {
  return cell.substr(0, cell.find_last_not_of("0123456789") + 1);
}

std::vector<CellRow> read_rows(const std::string& path) {
  std::vector<CellRow> rows;
  for (const std::string& line : lines_of(path)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos)
      throw_error(path, ": '", line, "': expected 'label: cell cell ...'");
    CellRow& row = rows.emplace_back(CellRow{line.substr(0, colon), {}});
    std::istringstream words(line.substr(colon + 1));
    for (std::string cell; words >> cell;) row.cells.push_back(cell);
  }
  return rows;
}

}  // namespace

Figure cells_figure(const std::string& path) {
  const std::vector<CellRow> rows = read_rows(path);
  size_t longest = 1;
  std::vector<std::string> kinds;  // in the order in which they appear
  for (const CellRow& row : rows) {
    longest = std::max(longest, row.cells.size());
    for (const std::string& cell : row.cells)
      if (cell != "." && std::ranges::find(kinds, kind_of(cell)) == kinds.end())
        kinds.push_back(kind_of(cell));
  }
  const double width = kWidth / static_cast<double>(longest);
  std::string svg;
  double y = kTop;
  for (const auto& [label, cells] : rows) {
    svg += text_at(kLeft - 12, y + 17, "label end", label);
    for (size_t c = 0; c < cells.size(); ++c) {
      const double x = kLeft + width * static_cast<double>(c);
      const auto kind = std::ranges::find(kinds, kind_of(cells[c]));
      svg += rectangle(x + 1, y, width - 2, kBar,
                       kind == kinds.end() ? "empty" : series(kind - kinds.begin()));
      const std::string number = cells[c].substr(kind_of(cells[c]).size());
      if (!number.empty() && width > 6 + 6.5 * static_cast<double>(number.size()))
        svg += text_at(x + width / 2, y + 16, "on mid", number);
    }
    y += kRow;
  }
  return {"Cells",
          string_printf("%zu rows of up to %zu cells, coloured by kind.", rows.size(), longest),
          svg, y, kinds};
}

}  // namespace anymesh
