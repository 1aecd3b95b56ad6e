// Draws the tutorials' figures other than loss curves (plot_loss), as one self-contained SVG. kKinds
// lists them. Exits with 2 if the arguments or the file can't be used.
#include <algorithm>
#include <cxxopts.hpp>
#include <optional>
#include <string>

#include "tools/plot/bars_figure.h"
#include "tools/plot/batch_figure.h"
#include "tools/plot/cells_figure.h"
#include "tools/plot/checkpoint_figure.h"
#include "tools/plot/data_figure.h"
#include "tools/plot/mesh_figure.h"
#include "tools/plot/pipeline_figure.h"
#include "tools/plot/save_figure.h"
#include "tools/plot/svg.h"
#include "tools/plot/tensor_figure.h"
#include "tools/plot/zero_figure.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

struct Kind {
  const char* name;
  const char* help;  // lines of at most 86 characters
  Figure (*draw)(const std::string& path);
};

constexpr Kind kKinds[] = {
    {"cells",
     "lines 'stage 0: F0 F1 . B0': a row of cells for each, '.' an empty one, with the\n"
     "numbers in them",
     cells_figure},
    {"bars",
     "a header 'ZeRO,parameters,gradients', then lines of a label and numbers: a bar of\n"
     "parts for each",
     bars_figure},
    {"checkpoint",
     "a tag folder, universal folder or weights: its files and what they hold; with\n"
     "--parameter, how it is cut and in which file each part of it lies",
     checkpoint_figure},
    {"mesh", "LOG: which rank holds which layers, tp slices and ZeRO partitions", mesh_figure},
    {"tensor", "LOG: the MLP's two matrices, cut over the tensor parallel ranks", tensor_figure},
    {"pipeline",
     "what --trace wrote: when each rank ran the forward and the backward of each\n"
     "micro-batch",
     pipeline_figure},
    {"data", "LOG of a run on --data-path: from documents to samples, in the order of reading",
     data_figure},
    {"batch", "LOG: the samples of a step on the data parallel ranks, and their sum", batch_figure},
    {"zero",
     "LOG: what each data parallel rank holds and uses at each moment of a step, for ZeRO\n0 to 3",
     zero_figure},
    {"save", "LOG of a run with --report-save: a save from its call to its commit", save_figure},
};

// Returns "cells, bars or mesh".
std::string names_of_kinds() {
  std::string names;
  for (const Kind& kind : kKinds) {
    const auto left = std::end(kKinds) - &kind;
    names += std::string(kind.name) + (left > 2 ? ", " : left == 2 ? " or " : "");
  }
  return names;
}

std::string help_on_kinds() {
  std::string help = "Draws FILE as an SVG. LOG is what pretrain_gpt printed.\n\n";
  for (const Kind& kind : kKinds) {
    std::string name = kind.name;
    name.resize(12, ' ');
    help += "  " + name;
    for (const char* c = kind.help; *c != 0; ++c)
      help += *c == '\n' ? "\n" + std::string(14, ' ') : std::string(1, *c);
    help += '\n';
  }
  return help;
}

struct Arguments {
  const Kind* kind;
  std::string title, file, output;
  std::optional<std::string> parameter;
};

Arguments parse(int argc, char** argv) {
  cxxopts::Options options("plot_figure", help_on_kinds());
  const auto text = text_value();
  options.custom_help("KIND --output FILE [--title TEXT] [--parameter NAME] FILE")
      .positional_help("");
  // clang-format off
  options.add_options()
    ("output", "SVG file to write", text, "FILE")
    ("title", "title of the figure, instead of its own", text, "TEXT")
    ("parameter", "checkpoint: draw this parameter", text, "NAME")
    ("help", "this text")("kind", "", text)("file", "", text);
  // clang-format on
  options.parse_positional({"kind", "file"});
  const auto parsed = parse_flags(options, argc, argv);
  check_words(parsed, {});
  for (const char* needed : {"kind", "file", "output"})
    if (!parsed.count(needed)) throw_error("give ", names_of_kinds(), ", --output and a file");
  const std::string name = text_of(parsed, "kind");
  const Kind* kind = std::ranges::find(kKinds, name, &Kind::name);
  if (kind == std::end(kKinds)) throw_error("expected ", names_of_kinds(), ", found '", name, "'");
  Arguments arguments{
      kind, text_of(parsed, "title"), text_of(parsed, "file"), text_of(parsed, "output"), {}};
  if (!parsed.count("parameter")) return arguments;
  if (kind->draw != checkpoint_figure) throw_error("--parameter is for checkpoint");
  arguments.parameter = text_of(parsed, "parameter");
  return arguments;
}

int draw(const Arguments& arguments) {
  const auto& [kind, title, file, output, parameter] = arguments;
  const Figure figure = parameter ? parameter_figure(file, *parameter) : kind->draw(file);
  write_svg(output, figure_svg(figure, title), {file});
  return 0;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("plot_figure", 2, argc, argv, anymesh::parse, anymesh::draw);
}
