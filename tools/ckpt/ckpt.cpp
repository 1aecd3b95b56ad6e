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

 FOLDER, A and B are a tag folder of any mesh and ZeRO stage (or the folder around it that has
 `latest`), a universal folder, or weights: a folder with pytorch_model.bin or model.safetensors,
 whole or in parts, or one such file.

 Examples:
  ckpt inspect checkpoints
  ckpt inspect checkpoints --parameter 2.mlp.dense_4h_to_h.weight
  ckpt verify checkpoints/global_step100 --workers 8
  ckpt diff checkpoints/global_step100 checkpoints/global_step100_universal
  ckpt diff checkpoints/global_step100 export/pytorch_model.bin --all
  ckpt verify export

 Exit code: 0 all is well, 1 something is broken or differs, 2 wrong arguments or no checkpoint,
 3 it may be whole, but is of a kind that is not understood, or cannot be opened here.
)";

struct Command {
  std::string name;
  std::vector<std::string> paths;
  std::optional<std::string> parameter;
  CkptOptions options;
};

Command parse(int argc, char** argv) {
  cxxopts::Options flags("ckpt", kHelp);
  flags.add_options()("workers", "Threads that read", cxxopts::value<int>()->default_value("4"),
                      "N")("all", "Print all, not the first few of many")("h,help", "Print this");
  flags.add_options()("parameter", "Follow this parameter (inspect)", text_value(), "NAME");
  const auto word = text_value();
  flags.add_options()("command", "", word)("first", "", word)("second", "", word);
  flags.parse_positional({"command", "first", "second"});
  flags.custom_help("COMMAND FOLDER... [--parameter NAME] [--workers N] [--all]")
      .positional_help("");
  const auto parsed = parse_flags(flags, argc, argv);
  Command command{.name = text_of(parsed, "command")};
  if (command.name != "inspect" && command.name != "verify" && command.name != "diff")
    throw_error("expected inspect, verify or diff, found '", command.name, "'");
  for (const char* path : {"first", "second"})
    if (parsed.count(path)) command.paths.push_back(text_of(parsed, path));
  const size_t found = command.paths.size() + parsed.unmatched().size();
  const size_t expected = command.name == "diff" ? 2 : 1;
  if (found != expected)
    throw_error(command.name, " takes ", expected, " checkpoint(s), found ", found);
  if (parsed.count("parameter")) {
    if (command.name != "inspect") throw_error("--parameter is for inspect");
    command.parameter = text_of(parsed, "parameter");
  }
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
