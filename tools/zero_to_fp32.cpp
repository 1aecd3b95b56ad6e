// zero_to_fp32: writes the fp32 weights of a checkpoint as pytorch_model.bin or model.safetensors.
// Takes the arguments of DeepSpeed's script of that name, and --dtype of its zero_to_torch.py.

#include <cstdio>
#include <cxxopts.hpp>
#include <optional>

#include "framework/format/whole.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

struct Arguments {
  Fp32Options options;
  bool debug = false;
};

Arguments parse(int argc, char** argv) {
  cxxopts::Options flags(
      "zero_to_fp32",
      "Writes the fp32 weights of a checkpoint (any ZeRO stage, tensor and pipeline parallel size, "
      "or\n"
      "a universal folder) as one state dict, in files that torch and Hugging Face load.\n");
  const auto text = text_value();
  // clang-format off
  flags.add_options()
    ("checkpoint_dir", "Folder with 'latest', or a tag or universal folder", text, "DIR")
    ("output_dir", "Folder for pytorch_model.bin or model.safetensors", text, "DIR")
    ("dtype", "Round all floating-point tensors to fp32, bf16 or fp16, also called float32, "
     "bfloat16 and float16 (default: half precision becomes fp32, fp64 and fp8 stay)", text, "TYPE")
    ("max_shard_size", "Largest file", text_value("5GB"), "SIZE")
    ("safe_serialization", "Write safetensors in place of .bin")
    ("t,tag", "Tag in checkpoint_dir, e.g. global_step100 (default: the one of 'latest')",
     text_value(""), "TAG")
    ("exclude_frozen_parameters", "Leave out parameters that were not trained")
    ("overwrite", "Replace weights in output_dir that no export of ours left there")
    ("d,debug", "Print the contents of each file")
    ("h,help", "Print this");
  // clang-format on
  flags.parse_positional({"checkpoint_dir", "output_dir"});
  flags.positional_help("checkpoint_dir output_dir");
  const auto parsed = parse_flags(flags, argc, argv);
  check_words(parsed, {"checkpoint_dir", "output_dir"});
  std::optional<DType> dtype;
  if (parsed.count("dtype") > 0) dtype = parse_output_dtype(text_of(parsed, "dtype"));
  return {.options = {.checkpoint = text_of(parsed, "checkpoint_dir"),
                      .tag = text_of(parsed, "tag"),
                      .output = text_of(parsed, "output_dir"),
                      .max_shard_size = parse_size(text_of(parsed, "max_shard_size")),
                      .safetensors = parsed.count("safe_serialization") > 0,
                      .exclude_frozen = parsed.count("exclude_frozen_parameters") > 0,
                      .overwrite = parsed.count("overwrite") > 0,
                      .dtype = dtype},
          .debug = parsed.count("debug") > 0};
}

// Prints each file and the tensors in it.
void print_files(const Fp32Report& report) {
  for (const WeightsFile& file : report.files) {
    std::printf("%s: %lu bytes\n", file.name.c_str(), file.bytes);
    for (const auto& [name, tensor] : file.tensors)
      std::printf("  %s  %s %s\n", printable(name).c_str(),
                  std::string(dtype_name(tensor.dtype)).c_str(), to_string(tensor.shape).c_str());
  }
}

int export_weights(const Arguments& arguments) {
  const Fp32Options& options = arguments.options;
  const Fp32Report report = with_progress(
      [&](const ProgressCallback& progress) { return export_fp32(options, progress); });
  for (const std::string& note : report.notes)
    std::fprintf(stderr, "note: %s\n", printable_message(note).c_str());
  if (!report.rounded.empty())
    std::fprintf(stderr,
                 "note: weights are the model's rounded ones where masters are unknown: %s\n",
                 printable(report.rounded, 1000).c_str());
  if (arguments.debug) print_files(report);
  std::printf("%s: %s\n", options.checkpoint.c_str(), report.source.c_str());
  std::printf("%s: %s\n", options.output.c_str(), summary(report, report.seconds).c_str());
  return 0;
}

}  // namespace
}  // namespace anymesh

ANYMESH_MAIN(zero_to_fp32)(int argc, char** argv) {
  return anymesh::run_tool("zero_to_fp32", 1, argc, argv, anymesh::parse, anymesh::export_weights);
}
