// hf_convert: converts Hugging Face models to universal checkpoints, and checkpoints to such
// models.

#include <cstdio>
#include <cxxopts.hpp>

#include "framework/util/shell_word.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kHelp =
    R"(Converts models between Hugging Face's folders and our checkpoints: GPT-2, Llama, Mistral, )"
    R"(Qwen 2 and 3,
 Gemma, GPT-NeoX, OPT, Phi 3, StarCoder 2, Falcon and BLOOM; Mixtral, Qwen 2 and 3 MoE, OLMoE.

 Commands:
  hf_convert import MODEL SAVE          MODEL: config.json, and model.safetensors, pytorch_model.bin
                                        or the parts of one
                                        SAVE: gets a universal checkpoint, without optimizer state,
                                        for pretrain_gpt --load SAVE --universal-checkpoint )"
    R"(--finetune
                                        --adapter FOLDER: an adapter of PEFT for it, or a Trainer's
                                        folder with one, whose optimizer's states go along
                                        --checkpoint FOLDER: the weights and the optimizer's states
                                        of FSDP2 or DeepSpeed, in place of MODEL's weights
  hf_convert export CHECKPOINT MODEL    CHECKPOINT: a folder with 'latest', a tag or universal )"
    R"(folder
                                        of any mesh and ZeRO stage, or weights, with --config
                                        MODEL: for AutoModelForCausalLM.from_pretrained
                                        --merge: with LoRA adapters added to its weights
                                        --to dcp: with the optimizer's states, for FSDP2
                                        --to torch_dist: the same, for Megatron-Core
                                        --adapter BASE: the adapters alone, for PEFT, beside the
                                        model of that name or folder

 A tokenizer's files go along as they are: import copies them to SAVE, export takes them from
 --tokenizer, else from CHECKPOINT. Exit code: 0 done, 1 it cannot be, 2 wrong arguments.
)";

struct Command {
  std::string name;
  HfExportOptions options;  // import: the checkpoint is MODEL, the output SAVE
  std::string config;
  bool overwrite = false;
  std::string adapter;     // import: its folder; export: the name of its base model
  std::string to;          // export: dcp or torch_dist; empty: a folder of Hugging Face
  std::string checkpoint;  // import: has the weights
  bool merge = false;
};

Command parse(int argc, char** argv) {
  cxxopts::Options flags("hf_convert", kHelp);
  const auto text = text_value();
  // clang-format off
  flags.add_options()
    ("adapter", "import: folder of a LoRA adapter; export: name of the base model of one", text,
     "FOLDER|BASE")
    ("checkpoint", "import: a checkpoint of torch.distributed.checkpoint or DeepSpeed with the "
     "weights and the optimizer's states", text, "FOLDER")
    ("to", "export: dcp (torch.distributed.checkpoint) or torch_dist (Megatron-Core), with the "
     "optimizer's states", text, "FORMAT")
    ("merge", "export: add the LoRA adapters to the weights")
    ("dtype", "export: round all weights to fp32, bf16 or fp16", text_value("fp32"), "TYPE")
    ("max-shard-size", "export: largest file", text_value("5GB"), "SIZE")
    ("tag", "export: tag in CHECKPOINT (default: the one of 'latest')", text, "TAG")
    ("config", "export: a config.json that defines the model, in place of CHECKPOINT's args",
     text, "FILE")
    ("tokenizer", "export: folder of the tokenizer's files (default: CHECKPOINT)", text, "FOLDER")
    ("overwrite", "import: replace a tokenizer's files in SAVE that no import wrote")
    ("h,help", "Print this");
  // clang-format on
  flags.add_options()("command", "", text)("in", "", text)("out", "", text);
  flags.parse_positional({"command", "in", "out"});
  flags.custom_help("COMMAND FROM TO [--max-shard-size SIZE]").positional_help("");
  const auto parsed = parse_flags(flags, argc, argv);
  Command command{.name = text_of(parsed, "command")};
  if (command.name != "import" && command.name != "export")
    throw_error("expected import or export, found '", command.name, "'");
  if (text_of(parsed, "in").empty() || text_of(parsed, "out").empty() ||
      !parsed.unmatched().empty())
    throw_error(command.name, " takes two folders, from and to");
  for (const char* flag : {"merge", "dtype", "max-shard-size", "tag", "config", "tokenizer"})
    if (command.name == "import" && parsed.count(flag)) throw_error("--", flag, " is of export");
  command.config = text_of(parsed, "config");
  command.overwrite = parsed.count("overwrite") > 0;
  if (command.name == "export" && command.overwrite) throw_error("--overwrite is of import");
  command.adapter = text_of(parsed, "adapter");
  command.checkpoint = text_of(parsed, "checkpoint");
  command.to = text_of(parsed, "to");
  if (parsed.count("to") && command.to != "dcp" && command.to != "torch_dist")
    throw_error("--to is '", command.to, "'; expected dcp or torch_dist");
  if (parsed.count("to") && command.name == "import") throw_error("--to is of export");
  for (const char* flag : {"adapter", "merge", "dtype", "max-shard-size", "config", "tokenizer"})
    if (parsed.count("to") && parsed.count(flag))
      throw_error("--to and --", flag, " exclude each other");
  if (parsed.count("checkpoint") && command.checkpoint.empty())
    throw_error("--checkpoint is empty; expected the folder of a checkpoint");
  if (parsed.count("checkpoint") && command.name == "export")
    throw_error("--checkpoint is of import; export takes it as CHECKPOINT");
  if (parsed.count("checkpoint") && parsed.count("adapter"))
    throw_error("--checkpoint and --adapter exclude each other");
  command.merge = parsed.count("merge") > 0;
  if (parsed.count("adapter") && command.adapter.empty())
    throw_error("--adapter is empty; expected the ",
                command.name == "import" ? "folder of an adapter" : "name of its base model");
  for (const char* flag : {"merge", "max-shard-size"})
    if (command.name == "export" && !command.adapter.empty() && parsed.count(flag))
      throw_error(
          "--", flag,
          " and --adapter exclude each other: PEFT has adapters in one file, beside their model");
  command.options = {.checkpoint = text_of(parsed, "in"),
                     .tag = text_of(parsed, "tag"),
                     .output = text_of(parsed, "out"),
                     .tokenizer = text_of(parsed, "tokenizer"),
                     .max_shard_size = parse_size(text_of(parsed, "max-shard-size")),
                     .dtype = parse_output_dtype(text_of(parsed, "dtype"))};
  return command;
}

void run_import(const Command& command) {
  const HfExportOptions& options = command.options;
  const HfImport report = with_progress([&](const ProgressCallback& progress) {
    return import_hf(options.checkpoint, options.output, progress, command.overwrite,
                     command.adapter, command.checkpoint);
  });
  const GptConfig& gpt = report.model.gpt;
  const auto bytes = static_cast<double>(report.bytes);
  std::printf("%s: %s of %d layers\n", options.checkpoint.c_str(), report.model.family->name,
              gpt.num_layers);
  std::printf("%s: %ld parameters, %s %s\n", report.output.c_str(), report.parameters,
              size_text(bytes).c_str(), pace(bytes, report.seconds).c_str());
  print_rest(options.output, report.tokenizer, report.notes);
  const TokenizerChoice tokenizer = tokenizer_of(open_checkpoint(report.output, 1), {});
  std::string flags = flags_of_gpt(with_lora(gpt, report.lora));
  if (tokenizer.type.empty()) {
    std::printf(
        "pretrain_gpt goes on from it with these flags; --seq-length may be less, and the "
        "tokenizer\n"
        "may have no more than %d entries (or NullTokenizer with --vocab-size %d):\n",
        gpt.vocab_size, gpt.vocab_size);
  } else {
    std::printf("pretrain_gpt goes on from it with these flags; --seq-length may be less:\n");
    flags += " " + flags_of(tokenizer);
  }
  std::printf("%s --load %s --universal-checkpoint%s\n", flags.c_str(),
              shell_word(options.output).c_str(), report.resumes ? "" : " --finetune");
}

void run_dcp_export(const Command& command) {
  const HfExportOptions& options = command.options;
  const bool megatron = command.to == "torch_dist";
  const DcpReport report = with_progress([&](const ProgressCallback& progress) {
    return export_dcp(
        {.input = resolve_tag(options.checkpoint, options.tag),
         .output = options.output,
         .torch_dist = megatron,
         .split = [&](const Checkpoint& checkpoint) { return split_gpt(checkpoint, megatron); }},
        progress);
  });
  const auto bytes = static_cast<double>(report.bytes);
  std::printf("%s: %s\n", options.checkpoint.c_str(), report.source.c_str());
  std::printf("%s: %s of %ld tensors, %s %s\n", options.output.c_str(), command.to.c_str(),
              report.tensors, size_text(bytes).c_str(), pace(bytes, report.seconds).c_str());
  for (const std::string& note : report.notes)
    std::printf("note: %s\n", printable_message(note).c_str());
}

int convert(const Command& command) {
  if (!command.to.empty()) {
    run_dcp_export(command);
    return 0;
  }
  if (command.name == "export")
    return export_and_report(
        command.options, [&](const Checkpoint& checkpoint, const TokenIds& ids) {
          return describe_gpt(checkpoint, ids, command.config, {command.merge, command.adapter});
        });
  run_import(command);
  return 0;
}

}  // namespace
}  // namespace anymesh

ANYMESH_MAIN(hf_convert)(int argc, char** argv) {
  return anymesh::run_tool("hf_convert", 1, argc, argv, anymesh::parse, anymesh::convert);
}
