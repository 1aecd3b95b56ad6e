// ds_reshard: cuts an ordinary checkpoint anew for another mesh.

#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>

#include "framework/format/reshard.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kHelp =
    R"(Cuts a checkpoint of DeepSpeed (any model, HF Trainer, Accelerate), Megatron-DeepSpeed or
pretrain_gpt anew: the output is the ordinary checkpoint that a job on another mesh would have
written, and the unmodified load_checkpoint takes it.

  ds_reshard --input_folder ckpt/global_step100 --output_folder ckpt6/global_step100 --target dp=6
)";

ReshardOptions parse(int argc, char** argv) {
  cxxopts::Options flags("ds_reshard", kHelp);
  const auto text = text_value();
  // clang-format off
  flags.add_options()
    ("input_folder", "Tag folder, e.g. checkpoints/global_step100, or the folder with 'latest'",
     text, "DIR")
    ("output_folder", "Tag folder to make; what belongs beside a tag, and 'latest', go beside it",
     text, "DIR")
    ("target", "dp=N, zero=0..3, dtype=bf16|fp16|fp32, tp=N, pp=N, ep=N, joined by commas; what is "
     "not named stays", text, "MESH")
    ("num_workers", "Threads that read, cut and write tensors",
     cxxopts::value<int>()->default_value(std::to_string(write_threads())), "N")
    ("assume_module_order",
     "At ZeRO 0, where nothing proves which parameter a state is of: the module's order")
    ("dry-run", "Print the mesh, the files to write, and whether they fit")
    ("h,help", "Print this");
  // clang-format on
  const auto parsed = parse_flags(flags, argc, argv);
  check_words(parsed, {"input_folder", "output_folder", "target"});
  return {.input = text_of(parsed, "input_folder"),
          .output = text_of(parsed, "output_folder"),
          .target = ReshardTarget::parse(text_of(parsed, "target")),
          .threads = workers_of(parsed, "num_workers"),
          .assume_module_order = parsed.count("assume_module_order") > 0,
          .dry_run = parsed.count("dry-run") > 0};
}

int run(const ReshardOptions& options) {
  const ReshardReport report =
      with_progress([&](const ProgressCallback& progress) { return reshard(options, progress); });
  for (const std::string& note : report.notes)
    std::cerr << "note: " << printable_message(note) << '\n';
  std::printf("%s: %s\n", options.input.c_str(), to_string(report.from).c_str());
  const auto bytes = static_cast<double>(report.bytes);
  if (options.dry_run) {
    std::printf("%s: would be %s: %ld files, %s; %s are free\n", options.output.c_str(),
                to_string(report.to).c_str(), report.files, size_text(bytes).c_str(),
                size_text(report.free_bytes).c_str());
    if (!report.refusal.empty()) throw_error(report.refusal);
  } else {
    std::printf("%s: %s: %ld files, %s %s\n", options.output.c_str(), to_string(report.to).c_str(),
                report.files, size_text(bytes).c_str(), pace(bytes, report.seconds).c_str());
  }
  if (!report.beside.empty()) std::printf("beside it: %s\n", joined(report.beside, " ").c_str());
  if (report.kept > 0)
    std::printf("%s were there already, of a run that was interrupted\n",
                size_text(report.kept).c_str());
  std::printf("every element covered exactly once (%ld parameters, %ld elements)\n",
              report.parameters, report.elements);
  return 0;
}

}  // namespace
}  // namespace anymesh

ANYMESH_MAIN(ds_reshard)(int argc, char** argv) {
  return anymesh::run_tool("ds_reshard", 1, argc, argv, anymesh::parse, anymesh::run);
}
