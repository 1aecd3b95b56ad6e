// Shows runs as one HTML file that needs nothing else: loss curves, mesh, memory, timeline,
// communication, checkpoints and flags. run_folder.h says what it looks for.
//
//   report runs/05_pipeline_parallel >report.html
//   report --output report.html --title "Two learning rates" runs/first runs/second
//
// Exits with 1 if the report leaves out a file that cannot be read, and with 2 if the arguments or
// a folder can't be used.
#include <cstdio>
#include <cxxopts.hpp>

#include "framework/format/folder.h"
#include "tools/report/sections.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

struct Arguments {
  std::string output, title;
  std::vector<std::filesystem::path> folders;
};

Arguments parse(int argc, char** argv) {
  cxxopts::Options flags("report", "Shows the runs of a folder as one HTML file, on stdout.");
  flags.custom_help("[--flag value]... FOLDER [FOLDER]...").positional_help("").set_width(100);
  // clang-format off
  flags.add_options()
    ("output", "HTML file to write instead", text_value(), "FILE")
    ("title", "title of the page (default: the folders)", text_value(), "TEXT")
    ("help", "this text");
  // clang-format on
  const cxxopts::ParseResult parsed = parse_flags(flags, argc, argv);
  if (parsed.unmatched().empty()) throw_error("give at least one folder of a run");
  const auto& folders = parsed.unmatched();
  return {text_of(parsed, "output"), text_of(parsed, "title"), {folders.begin(), folders.end()}};
}

int report(const Arguments& arguments) {
  const auto& [output, title, folders] = arguments;
  const RunFolder folder = read_run_folders(folders);
  const std::string page = report_page(title, folders, folder);
  if (output.empty())
    std::cout << page;
  else
    write_output("--output", output, {"a report of ours", kPageStart}, page);
  for (const std::string& problem : folder.problems) std::cerr << "report: " << problem << '\n';
  return folder.problems.empty() ? 0 : 1;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("report", 2, argc, argv, anymesh::parse, anymesh::report);
}
