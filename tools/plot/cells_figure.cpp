#include <algorithm>
#include <sstream>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

constexpr double kHeading = 30, kJoint = 40;  // pixels above a heading's rows, and of links
constexpr const char *kEmptyCell = ".", *kArrowCell = ">", *kGapCell = "|", *kJoinLine = "~";

struct Cell {
  std::string name;  // "F12"
  double columns = 1;

  std::string kind() const { return name.substr(0, name.find_last_not_of("0123456789") + 1); }
  std::string number() const { return name.substr(kind().size()); }
};

struct Row {
  std::string label;
  std::vector<Cell> cells;
  double columns() const {
    double sum = 0;
    for (const Cell& cell : cells) sum += cell.columns;
    return sum;
  }
};

// Rows of one scale, below a heading or links to the row above.
struct Section {
  std::string heading;
  bool joined = false;
  std::vector<Row> rows;
};

// A kind of cell, and its name in the legend.
struct Kind {
  std::string letters, name;
};

struct Cells {
  std::vector<Section> sections{1};
  std::vector<Kind> kinds;
};

size_t place_of(const std::string& letters, std::vector<Kind>& kinds) {
  const auto found = std::ranges::find(kinds, letters, &Kind::letters);
  if (found != kinds.end()) return found - kinds.begin();
  kinds.push_back({letters, letters});
  return kinds.size() - 1;
}

Cell read_cell(const std::string& path, const std::string& word) {
  const size_t star = word.find('*');
  if (star == std::string::npos) return {word};
  const auto columns = parse_number<double>(word.substr(star + 1));
  if (star == 0 || !columns || !(*columns > 0 && *columns < 1e15))
    throw_error(path, ": '", word, "': expected a cell and its columns, F0*3");
  return {word.substr(0, star), *columns};
}

Cells read_cells(const std::string& path) {
  Cells all;
  for (const std::string& line : lines_of(path)) {
    const size_t colon = line.find(':'), equals = line.find(" = ");
    if (line == kJoinLine) {
      all.sections.push_back({.joined = true});
    } else if (line.starts_with("# ")) {
      all.sections.push_back({.heading = line.substr(2)});
    } else if (equals < colon) {
      all.kinds[place_of(line.substr(0, equals), all.kinds)].name = line.substr(equals + 3);
    } else if (colon != std::string::npos) {
      Row& row = all.sections.back().rows.emplace_back(Row{line.substr(0, colon), {}});
      std::istringstream words(line.substr(colon + 1));
      for (std::string word; words >> word;) row.cells.push_back(read_cell(path, word));
    } else {
      throw_error(path, ": '", line,
                  "': expected 'label: cell cell ...', '# heading', 'F = forward' or '~'");
    }
  }
  return all;
}

// Draws rows from top to bottom.
class CellDrawing {
 public:
  explicit CellDrawing(std::vector<Kind>& kinds) : kinds_(kinds) {}

  void add(const Section& section) {
    if (!section.heading.empty())
      svg += text_at(kLeft, (y += kHeading) - 12, "head", section.heading);
    double most = 1;
    for (const Row& row : section.rows) most = std::max(most, row.columns());
    for (const Row& row : section.rows)
      add(row, kWidth / most, section.joined && &row == &section.rows.front());
  }

  std::string svg;
  double y = kTop;

 private:
  void add(const Row& row, double width, bool joined) {
    const double above = y - kRow + kBar;
    if (joined) y += kJoint;
    svg += row_label(y, row.label);
    std::vector<std::pair<std::string, double>> places;  // the middle of each cell
    double x = kLeft;
    for (const Cell& cell : row.cells) {
      const double wide = width * cell.columns;
      if (cell.name == kArrowCell) {
        svg += text_at(x + wide / 2, y + 17, "label mid", "\u2192");
      } else if (cell.name == kGapCell) {  // nothing
      } else if (cell.name == kEmptyCell) {
        svg += rectangle(x + 1, y, std::max(wide - 2, 0.5), kBar, "empty");
      } else {
        const std::string color = series(place_of(cell.kind(), kinds_));
        svg += rectangle(x + 1, y, std::max(wide - 2, 0.5), kBar, color) +
               text_within(x, wide, y, "on", cell.number());
        places.emplace_back(cell.name, x + wide / 2);
        if (joined) join(cell.name, above, x + wide / 2, color);
      }
      x += wide;
    }
    last_ = places;
    y += kRow;
  }

  // Links a cell to its equals in the row above.
  void join(const std::string& name, double above, double x, const std::string& color) {
    for (const auto& [other, from] : last_)
      if (other == name)
        svg += path_at("M" + px(from) + " " + px(above) + "L" + px(x) + " " + px(y),
                       "class=\"" + color + "\" stroke-width=\"1.5\"");
  }

  std::vector<Kind>& kinds_;
  std::vector<std::pair<std::string, double>> last_;  // the row above
};

}  // namespace

Figure cells_figure(const std::string& path) {
  Cells cells = read_cells(path);
  CellDrawing drawing(cells.kinds);
  size_t rows = 0, longest = 0;
  std::string headings;
  for (const Section& section : cells.sections) {
    drawing.add(section);
    rows += section.rows.size();
    for (const Row& row : section.rows) longest = std::max(longest, row.cells.size());
    if (!section.heading.empty()) headings += " " + section.heading + ".";
  }
  std::vector<std::string> legend;
  for (const Kind& kind : cells.kinds) legend.push_back(kind.name);
  return {"Cells",
          string_printf("%zu rows of up to %zu cells, coloured by kind.", rows, longest) + headings,
          drawing.svg, drawing.y, legend};
}

}  // namespace anymesh
