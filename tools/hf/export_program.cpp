#include <cstdio>
#include <cxxopts.hpp>

#include "framework/util/format.h"
#include "tools/hf/export.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

HfExportOptions parse_export(const std::string& program, int argc, char** argv) {
  cxxopts::Options flags(program,
                         "Exports a checkpoint of any mesh and ZeRO stage to a folder like Hugging "
                         "Face's.\n");
  const auto text = text_value();
  // clang-format off
  flags.add_options()
    ("dtype", "Round all weights to fp32, bf16 or fp16", text_value("fp32"), "TYPE")
    ("max-shard-size", "Largest file", text_value("5GB"), "SIZE")
    ("tag", "Tag in CHECKPOINT (default: the one of 'latest')", text, "TAG")
    ("tokenizer", "Folder of the tokenizer's files (default: CHECKPOINT)", text, "FOLDER")
    ("h,help", "Print this");
  // clang-format on
  flags.add_options()("from", "", text)("to", "", text);
  flags.parse_positional({"from", "to"});
  flags.custom_help("CHECKPOINT FOLDER [--dtype TYPE]").positional_help("");
  const auto parsed = parse_flags(flags, argc, argv);
  if (text_of(parsed, "from").empty() || text_of(parsed, "to").empty() ||
      !parsed.unmatched().empty())
    throw_error("expected two folders, from and to");
  return {.checkpoint = text_of(parsed, "from"),
          .tag = text_of(parsed, "tag"),
          .output = text_of(parsed, "to"),
          .tokenizer = text_of(parsed, "tokenizer"),
          .max_shard_size = parse_size(text_of(parsed, "max-shard-size")),
          .dtype = parse_output_dtype(text_of(parsed, "dtype"))};
}

}  // namespace

void print_rest(const std::filesystem::path& folder, const std::vector<std::string>& tokenizer,
                const std::vector<std::string>& notes) {
  std::printf("%s: %s\n", folder.c_str(),
              tokenizer.empty() ? "no tokenizer" : joined(tokenizer, " ").c_str());
  for (const std::string& note : notes) std::printf("note: %s\n", note.c_str());
}

int export_and_report(const HfExportOptions& options, const DescribeHf& describe) {
  const HfExport report = with_progress(
      [&](const ProgressCallback& progress) { return export_hf(options, describe, progress); });
  std::printf("%s: %s\n", options.checkpoint.c_str(), report.source.c_str());
  std::printf("%s: %s, %s\n", options.output.c_str(), report.model.c_str(),
              summary(report.written, report.seconds).c_str());
  print_rest(options.output, report.tokenizer, report.notes);
  return 0;
}

int hf_export(int argc, char** argv, const std::string& program, const DescribeHf& describe) {
  return run_tool(
      program.c_str(), 1, argc, argv,
      [&](int count, char** words) { return parse_export(program, count, words); },
      [&](const HfExportOptions& options) { return export_and_report(options, describe); });
}

}  // namespace anymesh
