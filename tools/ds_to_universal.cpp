// ds_to_universal: converts an ordinary checkpoint to a universal one. Takes the flags of
// DeepSpeed's script of that name.

#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>

#include "framework/format/whole.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

ConvertOptions parse(int argc, char** argv) {
  cxxopts::Options flags(
      "ds_to_universal",
      "Makes a universal checkpoint, which resumes on any mesh, out of a checkpoint of DeepSpeed,\n"
      "Megatron-DeepSpeed or pretrain_gpt (ZeRO 0 to 3).\n");
  const auto folder = text_value();
  const auto threads = [](int count) {
    return cxxopts::value<int>()->default_value(std::to_string(count));
  };
  // clang-format off
  flags.add_options()
    ("input_folder", "Tag folder, e.g. checkpoints/global_step100, or the folder with 'latest'",
     folder, "DIR")
    ("output_folder", "Folder to make; replaced if it is a universal checkpoint", folder, "DIR")
    ("num_extract_workers", "Threads that read metadata", threads(4), "N")
    ("num_merge_workers", "Threads that read, merge and write tensors", threads(write_threads()),
     "N")
    ("dry-run", "Print the files to write, the expected time, and whether they fit")
    ("keep_temp_folder",
     "Keep the plan: tmp/plan.json in the output (there are no temporary fragments)")
    ("no_strict", "A pattern that matches no parameter is a warning")
    ("inject_missing_state",
     "Go on without universal_checkpoint_info: no parameter has a merge rule of its own")
    ("assume_module_order",
     "At ZeRO 0, where nothing proves which parameter a state is of: the module's order")
    ("h,help", "Print this");
  // clang-format on
  const auto parsed = parse_flags(flags, argc, argv);
  check_words(parsed, {"input_folder", "output_folder"});
  return {.input = text_of(parsed, "input_folder"),
          .output = text_of(parsed, "output_folder"),
          .read_workers = workers_of(parsed, "num_extract_workers"),
          .write_workers = workers_of(parsed, "num_merge_workers"),
          .keep_plan = parsed.count("keep_temp_folder") > 0,
          .dry_run = parsed.count("dry-run") > 0,
          .strict = parsed.count("no_strict") == 0,
          .inject_missing_info = parsed.count("inject_missing_state") > 0,
          .assume_module_order = parsed.count("assume_module_order") > 0};
}

int convert(const ConvertOptions& options) {
  const ConvertReport report = with_progress(
      [&](const ProgressCallback& progress) { return convert_to_universal(options, progress); });
  for (const std::string& warning : report.warnings)
    std::cerr << "warning: " << printable_message(warning) << '\n';
  std::printf("%s: ZeRO %d, tp %d, pp %d, dp %d\n", options.input.c_str(), report.stage,
              report.tp_size, report.pp_size, report.dp_size);
  const auto bytes = static_cast<double>(report.bytes);
  if (options.dry_run) {
    std::printf("%s: would get %ld files, %s, of %ld parameters, %ld tensors; %s are free\n",
                options.output.c_str(), report.files, size_text(bytes).c_str(), report.parameters,
                report.tensors, size_text(report.free_bytes).c_str());
    if (!report.refusal.empty()) throw_error(report.refusal);
    std::printf("about %.2f s at the measured %s/s, peak memory %ld MiB\n", report.seconds,
                size_text(bytes / report.seconds).c_str(), peak_memory() >> 20);
  } else {
    std::printf("%s: %ld parameters, %ld tensors, %s %s\n", options.output.c_str(),
                report.parameters, report.tensors, size_text(bytes).c_str(),
                pace(bytes, report.seconds).c_str());
  }
  if (report.kept > 0)
    std::printf("%s were there already, of a conversion that was interrupted\n",
                size_text(report.kept).c_str());
  std::printf("every element covered exactly once (%ld elements)\n", report.elements);
  return 0;
}

}  // namespace
}  // namespace anymesh

ANYMESH_MAIN(ds_to_universal)(int argc, char** argv) {
  return anymesh::run_tool("ds_to_universal", 1, argc, argv, anymesh::parse, anymesh::convert);
}
