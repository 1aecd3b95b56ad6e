// ckpt: looks into checkpoints, checks them, and compares them.

#include "tools/ckpt/ckpt.h"

#include <cxxopts.hpp>
#include <iostream>
#include <optional>

#include "framework/util/errors.h"
#include "framework/util/plain_words.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kHelp =
    R"(Looks into checkpoints of DeepSpeed, Megatron-DeepSpeed and pretrain_gpt.

 Commands:
  ckpt inspect FOLDER   what it is, how each parameter is cut, its files and what they hold
  ckpt inspect FOLDER --parameter NAME
                        where each element of a parameter lies: file, record and offset
  ckpt verify FOLDER    is everything there, undamaged, and of one save?
  ckpt diff A B         do two checkpoints hold the same weights, moments and steps, bit by bit?
  ckpt convert FOLDER OUT --to dcp
                        writes a folder of torch.distributed.checkpoint: FSDP2, torchtitan
  ckpt convert FOLDER OUT --to deepspeed [--target dp=4,zero=3]
                        writes the checkpoint that a job of DeepSpeed would have (ds_reshard)
  ckpt convert FOLDER OUT --to universal
                        writes DeepSpeed's universal checkpoint (ds_to_universal)

 FOLDER, A and B are a tag folder of any mesh and ZeRO stage (or the folder around it that has
 `latest`), a universal folder, a folder of torch.distributed.checkpoint, or weights: a folder with
 pytorch_model.bin or model.safetensors, whole or in parts, or one such file.

 Examples:
  ckpt inspect checkpoints
  ckpt inspect checkpoints --parameter 2.mlp.dense_4h_to_h.weight
  ckpt verify checkpoints/global_step100 --workers 8
  ckpt diff checkpoints/global_step100 checkpoints/global_step100_universal
  ckpt diff checkpoints/global_step100 export/pytorch_model.bin --all
  ckpt verify export
  ckpt convert checkpoints dcp_folder --to dcp

 Exit code: 0 all is well, 1 something is broken or differs, 2 wrong arguments or no checkpoint,
 3 it may be whole, but is of a kind that is not understood, or cannot be opened here.
)";

struct Command {
  std::string name;
  std::vector<std::string> paths;
  std::optional<std::string> parameter;
  CkptOptions options;
  ConvertRequest convert;
};

Command parse(int argc, char** argv) {
  cxxopts::Options flags("ckpt", kHelp);
  flags.add_options()("workers", "Threads that read", cxxopts::value<int>()->default_value("4"),
                      "N")("all", "Print all, not the first few of many")("h,help", "Print this");
  const auto word = text_value();
  flags.add_options()("parameter", "Follow this parameter (inspect)", word, "NAME");
  flags.add_options()("to", "Format to write (convert): dcp, deepspeed or universal", word,
                      "FORMAT");
  flags.add_options()("target", "Mesh, ZeRO stage and precision, as of ds_reshard (convert)", word,
                      "MESH");
  flags.add_options()("model-key", "Key of the model in a dcp (convert)", text_value("model"),
                      "KEY");
  flags.add_options()("optimizer-key", "Key of the optimizer in a dcp (convert)",
                      text_value("optim"), "KEY");
  flags.add_options()("command", "", word)("first", "", word)("second", "", word);
  flags.parse_positional({"command", "first", "second"});
  flags.custom_help("COMMAND FOLDER... [--parameter NAME] [--workers N] [--all]")
      .positional_help("");
  const auto parsed = parse_flags(flags, argc, argv);
  Command command{.name = text_of(parsed, "command")};
  if (command.name != "inspect" && command.name != "verify" && command.name != "diff" &&
      command.name != "convert")
    throw_error("expected inspect, verify, diff or convert, found '", command.name, "'");
  for (const char* path : {"first", "second"})
    if (parsed.count(path)) command.paths.push_back(text_of(parsed, path));
  const size_t found = command.paths.size() + parsed.unmatched().size();
  const size_t expected = command.name == "diff" || command.name == "convert" ? 2 : 1;
  if (found != expected) throw_error(command.name, " takes ", expected, " path(s), found ", found);
  if (parsed.count("parameter")) {
    if (command.name != "inspect") throw_error("--parameter is for inspect");
    command.parameter = text_of(parsed, "parameter");
  }
  for (const char* flag : {"to", "target", "model-key", "optimizer-key"})
    if (parsed.count(flag) && command.name != "convert") throw_error("--", flag, " is for convert");
  if (command.name == "convert")
    command.convert = {.to = text_of(parsed, "to"),
                       .target = text_of(parsed, "target"),
                       .model_key = text_of(parsed, "model-key"),
                       .optimizer_key = text_of(parsed, "optimizer-key")};
  for (const char* flag : {"workers", "all"})
    if (parsed.count(flag) && command.name == "convert")
      throw_error("--", flag, " is for inspect, verify and diff");
  for (const char* key : {"model-key", "optimizer-key"})
    if (parsed.count(key) && command.convert.to != "dcp")
      throw_error("--", key, " is for --to dcp, found --to ", command.convert.to);
  if (parsed.count("target") && command.convert.to != "deepspeed")
    throw_error("--target is for --to deepspeed, found --to ", command.convert.to);
  command.options = {.workers = workers_of(parsed, "workers"), .all = parsed.count("all") > 0};
  return command;
}

int run(const Command& command) try {
  const std::vector<std::string>& paths = command.paths;
  const CkptOptions& options = command.options;
  if (command.parameter) return follow_parameter(paths[0], *command.parameter, options, std::cout);
  if (command.name == "inspect") return inspect_checkpoint(paths[0], options, std::cout);
  return with_progress([&](const ProgressCallback& progress) {
    CkptOptions shown = options;
    shown.progress = progress;
    if (command.name == "convert")
      return convert_checkpoint(paths[0], paths[1], command.convert, shown, std::cout);
    if (command.name == "verify") return verify_checkpoint(paths[0], shown, std::cout);
    return diff_checkpoints(paths[0], paths[1], shown, std::cout);
  });
} catch (const Unreadable& error) {
  std::cerr << "ckpt: " << printable_message(error) << '\n';
  return kExitNotUnderstood;
}

}  // namespace
}  // namespace anymesh

ANYMESH_MAIN(ckpt)(int argc, char** argv) {
  return anymesh::run_tool("ckpt", anymesh::kExitNoCheckpoint, argc, argv, anymesh::parse,
                           anymesh::run);
}
