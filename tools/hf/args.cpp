#include "tools/hf/args.h"

#include <optional>
#include <utility>

#include "framework/config/config.h"
#include "framework/format/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

struct FileFlag {
  std::string TokenizerChoice::*file;
  const char *flag, *dest, *usual_name;
  bool (*is_taken)(std::string_view type);
};
bool is_gpt2(std::string_view type) { return type == "GPT2BPETokenizer"; }
constexpr FileFlag kFiles[] = {
    {&TokenizerChoice::vocab_file, "--vocab-file", "vocab_file", "vocab.json", is_gpt2},
    {&TokenizerChoice::merge_file, "--merge-file", "merge_file", "merges.txt", is_gpt2},
    {&TokenizerChoice::tokenizer_model, "--tokenizer-model", "tokenizer_model", "tokenizer.model",
     takes_tokenizer_model}};

// Looks in the checkpoint's own folder, then in the folder of its tags.
std::optional<fs::path> beside(const fs::path& checkpoint, const fs::path& name) {
  for (const fs::path& folder : {checkpoint, checkpoint.parent_path()})
    if (fs::is_regular_file(folder / name)) return folder / name;
  return {};
}

std::string locate(const fs::path& checkpoint, const fs::path& named) {
  if (fs::exists(named)) return named;
  if (named.is_relative())
    for (fs::path folder = checkpoint; folder != folder.parent_path();
         folder = folder.parent_path())
      if (fs::is_regular_file(folder / named)) return folder / named;
  return beside(checkpoint, named.filename()).value_or(named);
}

std::string type_beside(const fs::path& checkpoint) {
  if (beside(checkpoint, "tokenizer.model")) return "GPTSentencePieceTokenizer";
  if (beside(checkpoint, "tokenizer.json")) return "HFTokenizer";
  const bool two = beside(checkpoint, "vocab.json") && beside(checkpoint, "merges.txt");
  return two ? "GPT2BPETokenizer" : "";
}

}  // namespace

Value args_of(const Checkpoint& checkpoint) {
  return checkpoint.metadata ? checkpoint.metadata.find(keys::kArgs) : Value();
}

Value run_args(const Checkpoint& checkpoint, const std::string& cure) {
  if (const Value args = args_of(checkpoint)) return args;
  throw DamagedFile(checkpoint.path.string() + ": has no args, which define the model; " + cure);
}

TokenizerChoice tokenizer_of(const Checkpoint& checkpoint, TokenizerChoice given) {
  const fs::path path = fs::absolute(checkpoint.path).lexically_normal();
  const Value args = args_of(checkpoint);
  const auto of_run = [&](const char* dest) {
    const Value value = args ? args.find(dest) : Value();
    return value && value.is_string() ? value.as_string() : std::string();
  };
  const auto number_of_run = [&](const char* dest, int64_t& number) {
    const Value value = args ? args.find(dest) : Value();
    if (value && value.is_int()) number = value.as_int();
  };
  if (given.type.empty()) given.type = of_run("tokenizer_type");
  if (given.type.empty()) given.type = type_beside(path);
  if (const std::string name = of_run("tiktoken_pattern"); !name.empty())
    given.tiktoken.pattern = name;
  number_of_run("tiktoken_num_special_tokens", given.tiktoken.special_tokens);
  number_of_run("vocab_size", given.tiktoken.vocab_size);
  for (const FileFlag& flag : kFiles) {
    std::string& file = given.*flag.file;
    if (!file.empty() || !flag.is_taken(given.type)) continue;
    const std::string named = of_run(flag.dest);
    const bool json = given.type.starts_with("H");  // HFTokenizer, HuggingFaceTokenizer
    const char* usual_name = json ? "tokenizer.json" : flag.usual_name;
    file = named.empty() ? beside(path, usual_name).value_or("").string() : locate(path, named);
    if (json && !fs::exists(file)) file = beside(path, usual_name).value_or(file);  // for a folder
    given.searched |= file != named;
  }
  return given;
}

std::string flags_of(const TokenizerChoice& choice) {
  std::string text = "--tokenizer-type " + choice.type;
  for (const FileFlag& flag : kFiles)
    if (const std::string& file = choice.*flag.file; !file.empty())
      text += std::string(" ") + flag.flag + " " + shell_word(file);
  return text;
}

}  // namespace anymesh
