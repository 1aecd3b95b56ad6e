// Lays the loss curves of several runs over each other, and checks that they agree.
//
//   plot_loss --output loss_curves.svg --title "Any mesh, one curve" --tolerance 1e-5
//             "1 rank=runs/a.csv" "tp2 pp2=runs/b.csv"
//
// The first CSV is the reference. Prints a table; exits with 1 if a run is out of tolerance, and
// with 2 if the arguments or a file can't be used.
#include <cstdio>
#include <cxxopts.hpp>
#include <string>
#include <vector>

#include "tools/plot/loss_csv.h"
#include "tools/plot/loss_plot.h"
#include "tools/plot/svg.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

double tolerance_of(const cxxopts::ParseResult& parsed, const char* name) {
  if (parsed.count(name) == 0) return -1;
  const std::string text = text_of(parsed, name);
  return number_from_zero("--" + std::string(name) + " " + text, text);
}

// Returns every --mark or --level. A list of cxxopts would end at a comma.
template <class T>
std::vector<T> all_of(const cxxopts::ParseResult& parsed, const char* name,
                      T (*read)(const std::string&)) {
  std::vector<T> all;
  for (const cxxopts::KeyValue& flag : parsed.arguments())
    if (flag.key() == name) all.push_back(read(flag.value()));
  return all;
}

cxxopts::ParseResult parse(int argc, char** argv) {
  cxxopts::Options flags("plot_loss", "Compares and plots loss CSVs; the first is the reference.");
  flags.custom_help("[--flag value]... [label=]reference.csv [[label=]run.csv]...").set_width(100);
  const auto text = text_value();
  // clang-format off
  flags.add_options()
    ("output", "SVG file to write", text, "FILE")
    ("title", "title of the plot", text_value("Training loss"), "TEXT")
    ("tolerance", "largest |relative delta| to the reference at any common iteration", text, "X")
    ("first-tolerance", "the same, at the first common iteration only", text, "X")
    ("mark", "a thin line at a step, with its text; may be repeated", text, "STEP=TEXT")
    ("level", "a thin line at a loss, with its text; may be repeated", text, "LOSS=TEXT")
    ("bitwise", "losses must be the same text")
    ("help", "this text");
  // clang-format on
  cxxopts::ParseResult parsed = parse_flags(flags, argc, argv);
  if (parsed.unmatched().empty()) throw_error("give at least one CSV");
  for (const std::string flag : {"mark", "level"})
    if (parsed.count(flag) != 0 && parsed.count("output") == 0)
      throw_error("--", flag, " has no effect without --output");
  return parsed;
}

int plot(const cxxopts::ParseResult& parsed) {
  const Tolerance tolerance{.first = tolerance_of(parsed, "first-tolerance"),
                            .any = tolerance_of(parsed, "tolerance"),
                            .bitwise = parsed.count("bitwise") != 0};
  std::vector<LossCurve> curves;
  for (const std::string& file : parsed.unmatched()) curves.push_back(read_loss_csv(file));
  std::printf("%s", loss_table(curves).c_str());
  if (parsed.count("output") != 0) {
    std::vector<std::filesystem::path> inputs;
    for (const LossCurve& curve : curves) inputs.emplace_back(curve.path);
    write_svg(text_of(parsed, "output"),
              loss_plot_svg(text_of(parsed, "title"), curves, all_of(parsed, "mark", read_mark),
                            all_of(parsed, "level", read_level)),
              inputs);
  }
  const std::vector<std::string> failures = tolerance_failures(curves, tolerance);
  for (const std::string& failure : failures) std::fprintf(stderr, "%s\n", failure.c_str());
  return failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("plot_loss", 2, argc, argv, anymesh::parse, anymesh::plot);
}
