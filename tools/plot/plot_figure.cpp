// Draws the tutorials' figures other than loss curves (plot_loss), as one self-contained SVG.
// kKinds lists them. Exits with 2 if the arguments or the file can't be used.
#include <algorithm>
#include <cxxopts.hpp>
#include <string>

#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

// Draws a run from its record.
template <Figure (*draw)(const RecordedRun&)>
Figure of_run(const std::string& path) {
  const RecordedRun run = record_of(path);
  try {
    return draw(run);
  } catch (const std::runtime_error& error) {
    throw_error(run.path.string(), ": ", error.what());
  }
}

struct Kind {
  const char* name;
  const char* help;  // lines of at most 86 characters
  Figure (*draw)(const std::string& path);
};

constexpr Kind kKinds[] = {
    {"cells",
     "lines 'stage 0: F0 F1*2 . B0': a row of cells for each, '.' an empty one, with the\n"
     "numbers in them; '# heading', '~' to link equal cells, 'F = forward'",
     cells_figure},
    {"bars",
     "a header 'ZeRO,parameters,gradients', then lines of a label and numbers: a bar of\n"
     "parts for each",
     bars_figure},
    {"checkpoint",
     "a tag folder, universal folder or weights: its files and what they hold; with\n"
     "--parameter, how it is cut and in which file each part of it lies",
     checkpoint_figure},
    {"mesh", "RUN: which rank holds which layers, tp slices and ZeRO partitions",
     of_run<mesh_figure>},
    {"tensor", "RUN: the MLP's two matrices, cut over the tensor parallel ranks",
     of_run<tensor_figure>},
    {"pipeline",
     "what --trace wrote: when each rank ran the forward and the backward of each\n"
     "micro-batch",
     pipeline_figure},
    {"data", "RUN on --data-path: from documents to samples, in the order of reading",
     of_run<data_figure>},
    {"batch", "RUN: the samples of a step on the data parallel ranks, and their sum",
     of_run<batch_figure>},
    {"zero",
     "RUN: what each data parallel rank holds and uses at each moment of a step, for ZeRO\n0 to 3",
     of_run<zero_figure>},
    {"save", "RUN with --save: its last saves from their call to their commit",
     of_run<save_figure>},
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
  std::string help =
      "Draws FILE as an SVG. RUN is the record loss.jsonl that pretrain_gpt --loss-csv loss.csv\n"
      "writes, or the log loss.log beside it.\n\n";
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

const Kind* kind_of(const cxxopts::ParseResult& parsed) {
  return std::ranges::find(kKinds, text_of(parsed, "kind"), &Kind::name);
}

cxxopts::ParseResult parse(int argc, char** argv) {
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
  cxxopts::ParseResult parsed = parse_flags(options, argc, argv);
  check_words(parsed, {});
  for (const char* needed : {"kind", "file", "output"})
    if (!parsed.count(needed)) throw_error("give ", names_of_kinds(), ", --output and a file");
  const Kind* kind = kind_of(parsed);
  if (kind == std::end(kKinds))
    throw_error("expected ", names_of_kinds(), ", found '", text_of(parsed, "kind"), "'");
  if (parsed.count("parameter") && kind->draw != checkpoint_figure)
    throw_error("--parameter is for checkpoint");
  return parsed;
}

int draw(const cxxopts::ParseResult& parsed) {
  const std::string file = text_of(parsed, "file");
  const Figure figure = parsed.count("parameter")
                            ? parameter_figure(file, text_of(parsed, "parameter"))
                            : kind_of(parsed)->draw(file);
  write_svg(text_of(parsed, "output"), figure_svg(figure, text_of(parsed, "title")), {file});
  return 0;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("plot_figure", 2, argc, argv, anymesh::parse, anymesh::draw);
}
