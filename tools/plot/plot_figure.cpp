// Draws the tutorials' figures other than loss curves (plot_loss), as one self-contained SVG. kHelp
// lists them. Exits with 2 if the arguments or the file can't be used.
#include <algorithm>
#include <cstdio>
#include <cxxopts.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "framework/comm/topology.h"
#include "framework/pipeline/schedule.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "tools/plot/loss_csv.h"
#include "tools/plot/svg.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kHelp = R"(Draws FILE as an SVG:

  cells   lines 'stage 0: F F . B': a row of cells for each, '.' an empty one
  bars    a header 'ZeRO,parameters,gradients', then lines of a label and numbers: a bar of parts for
          each
  mesh    what pretrain_gpt printed at its start: which rank holds which layers, tp slices and ZeRO
          partitions
)";

// Sizes in pixels.
constexpr double kLeft = 92, kTop = 64, kRow = 34, kBar = 24, kWidth = 640, kMargin = 24;

// Draws a coloured square for each name, from left to right.
std::string legend(const std::vector<std::string>& names, double y) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    svg += rectangle(x, y - 11, 13, 13, series_color(i)) + text_at(x + 20, y, "label", names[i]);
    x += 44 + 7.2 * static_cast<double>(names[i].size());
  }
  return svg;
}

std::string whole(const std::string& title, const std::string& body, double bottom,
                  const std::vector<std::string>& names, double width = kWidth) {
  return svg_begin(kLeft + width + kMargin, bottom + 62) + text_at(kLeft, 36, "title", title) +
         body + legend(names, bottom + 42) + "</svg>\n";
}

std::vector<std::string> lines_of(const std::string& path) {
  InputFile file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  if (lines.empty()) throw_error(path, ": no lines to draw");
  return lines;
}

std::string cells_svg(const std::string& title, const std::string& path) {
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
                       kind == kinds.end() ? "#eef0f3" : series_color(kind - kinds.begin()));
    }
    y += kRow;
  }
  return whole(title, svg, y, kinds);
}

struct Bar {
  std::string label;
  std::vector<double> parts;
  double sum = 0;
};

// Returns the names of the parts, which `bars` get.
std::vector<std::string> read_bars(const std::string& path, std::vector<Bar>& bars) {
  const std::vector<std::string> lines = lines_of(path);
  std::vector<std::string> names = split_row(lines[0]);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = split_row(lines[i]);
    if (fields.size() != names.size() || fields.size() < 2)
      throw_error(path, ": '", lines[i], "': expected a label and a number for each of '", lines[0],
                  "'");
    Bar& bar = bars.emplace_back(Bar{names[0] + " " + fields[0], {}});
    for (size_t f = 1; f < fields.size(); ++f)
      bar.sum +=
          bar.parts.emplace_back(number_from_zero(path + ": '" + fields[f] + "'", fields[f]));
  }
  names.erase(names.begin());
  return names;
}

std::string bars_svg(const std::string& title, const std::string& path) {
  std::vector<Bar> bars;
  const std::vector<std::string> names = read_bars(path, bars);
  double longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, bar.sum);
  if (longest == 0) throw_error("all bars are of length 0");
  const double bottom = kTop + kRow * static_cast<double>(bars.size()), room = kWidth - 60;
  std::string svg;
  for (const double tick : nice_ticks(0, longest, 6)) {
    const double x = kLeft + tick / longest * room;
    svg += line_at(x, kTop - 6, x, bottom, "grid");
    svg += text_at(x, bottom + 14, "tick mid", string_printf("%g", tick));
  }
  double y = kTop;
  for (const auto& [label, parts, sum] : bars) {
    svg += text_at(kLeft - 12, y + 17, "label end", label);
    double x = kLeft;
    for (size_t i = 0; i < parts.size(); ++i) {
      const double width = parts[i] / longest * room;
      svg += rectangle(x, y, width, kBar, series_color(i));
      x += width;
    }
    svg += text_at(x + 8, y + 17, "label", string_printf("%.3f", sum));
    y += kRow;
  }
  return whole(title, svg, bottom, names);
}

struct MeshRun {
  Topology mesh{0, 0, 0};
  int zero = 0, layers = 0;
};

MeshRun read_mesh(const std::string& path) {
  MeshRun run;
  auto& [mesh, zero, layers] = run;
  for (const std::string& line : lines_of(path)) {
    std::sscanf(line.c_str(), "mesh: tensor %4d x pipeline %4d x data %4d", &mesh.tp_size,
                &mesh.pp_size, &mesh.dp_size);
    std::sscanf(line.c_str(), "  --num-layers %9d", &layers);
    std::sscanf(line.c_str(), "  --zero-stage %4d", &zero);
  }
  const int across = mesh.tp_size * mesh.dp_size;
  if (mesh.tp_size < 1 || mesh.dp_size < 1 || mesh.pp_size < 1 || mesh.pp_size > layers ||
      across > 16 || mesh.pp_size > 16)
    throw_error(
        path,
        ": expected 'mesh: tensor T x pipeline P x data D' and '--num-layers L' as pretrain_gpt "
        "prints them, with T x D and P up to 16");
  return run;
}

// Draws a row for each stage, with a cell for each rank in the order of rank numbers. A cell has a
// bar for each kind of state. The stage's whole state is grey; the rank's partition of its tp slice
// is coloured.
std::string mesh_svg(const std::string& title, const std::string& path) {
  constexpr double kCell = 160, kCellHeight = 96, kThick = 10;
  const auto [mesh, zero, layers] = read_mesh(path);
  const int across = mesh.dp_size * mesh.tp_size;
  std::string svg;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coord at = mesh.coord_of(rank);
    const double x = kLeft + kCell * (rank % across), y = kTop + kCellHeight * at.pp;
    if (rank % across == 0) {
      const LayerRange range = layers_of_stage(layers, mesh.pp_size, at.pp);
      svg += text_at(x - 12, y + 12, "label end", "stage " + std::to_string(at.pp)) +
             text_at(x - 12, y + 28, "tick end",
                     string_printf("layers %d-%d", range.begin, range.end - 1));
    }
    svg += text_at(x, y + 12, "head", "rank " + std::to_string(rank)) +
           text_at(x, y + 28, "tick", string_printf("tp %d, pp %d, dp %d", at.tp, at.pp, at.dp));
    for (int kind = 0; kind < 3; ++kind) {
      const bool cut = zero >= 3 - kind;  // 3 cuts parameters, 2 gradients, 1 the optimizer
      const double bar = y + 36 + (kThick + 4) * kind, all = kCell - 16, slice = all / mesh.tp_size,
                   part = cut ? slice / mesh.dp_size : slice;
      svg += rectangle(x, bar, all, kThick, "#eef0f3") +
             rectangle(x + slice * at.tp + (cut ? part * at.dp : 0), bar, part, kThick,
                       series_color(kind));
    }
  }
  return whole(title, svg, kTop + kCellHeight * mesh.pp_size,
               {"parameters", "gradients", "optimizer state"}, kCell * across);
}

struct Arguments {
  std::string kind, title, file, output;
};

Arguments parse(int argc, char** argv) {
  cxxopts::Options options("plot_figure", kHelp);
  const auto text = text_value();
  options.custom_help("cells|bars|mesh --output FILE [--title TEXT] FILE").positional_help("");
  // clang-format off
  options.add_options()
    ("output", "SVG file to write", text, "FILE")
    ("title", "title of the figure", text_value(""), "TEXT")
    ("help", "this text")("kind", "", text)("file", "", text);
  // clang-format on
  options.parse_positional({"kind", "file"});
  const auto parsed = parse_flags(options, argc, argv);
  check_words(parsed, {});
  for (const char* needed : {"kind", "file", "output"})
    if (!parsed.count(needed)) throw_error("give cells, bars or mesh, --output and a file");
  const std::string kind = text_of(parsed, "kind");
  if (kind != "cells" && kind != "bars" && kind != "mesh")
    throw_error("expected cells, bars or mesh, found '", kind, "'");
  return {kind, text_of(parsed, "title"), text_of(parsed, "file"), text_of(parsed, "output")};
}

int draw(const Arguments& arguments) {
  const auto& [kind, title, file, output] = arguments;
  const auto svg_of = kind == "cells" ? cells_svg : kind == "bars" ? bars_svg : mesh_svg;
  write_svg(output, svg_of(title, file), {file});
  return 0;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("plot_figure", 2, argc, argv, anymesh::parse, anymesh::draw);
}
