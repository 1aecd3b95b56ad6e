#include "tools/preprocess/input_flags.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "framework/config/foreign_flags.h"
#include "framework/data/inputs/input_list.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr bool kValue = true;
constexpr bool kSwitch = false;
constexpr std::string_view kOtherTokenizer =
    "is for a --tokenizer-type that is not in this version";

constexpr Foreign kForeignFlags[] = {
    {"partitions|log-interval|lang|workers-to-check|max-documents|performance-dir|"
     "make-vocab-size-divisible-by|padded-vocab-size",
     kValue},
    {"keep-sequential-samples|keep-newlines|legacy-tokenizer|trust-remote-code|"
     "tokenizer-hf-use-fast|tokenizer-hf-no-use-fast|tokenizer-hf-include-special-tokens"},
    {"vocab-extra-ids", kValue, "the vocabulary is the tokenizer's", "0"},
    {"split-sentences", kSwitch,
     "documents are not cut into sentences, as BERT's data are; GPT's are not"},
    {"find-optimal-num-workers", kSwitch, "no runs are timed; --workers 0 takes all cores"},
    {"tokenizer-special-tokens|tiktoken-special-tokens|special-tokens", kValue,
     "special tokens are those of the tokenizer's files; the HFTokenizer reads them from a "
     "tokenizer_config.json"},
    {"tokenizer-metadata|metadata-path", kValue, "use --tokenizer-type"},
    {"tokenizer-name-or-path", kValue,
     "use --tokenizer-type HFTokenizer, and --tokenizer-model with its folder"},
    {"tokenizer-sentencepiece-legacy", kSwitch,
     "use --tokenizer-type: the SentencePieceTokenizer finds special tokens in a text, the "
     "GPTSentencePieceTokenizer does not"},
    {"tokenizer-sentencepiece-ignore-extra-whitespaces", kSwitch,
     "the SentencePiece model decides on spaces"},
    {"null-tokenizer-eod-id|null-tokenizer-pad-id|tokenizer-prompt-format|image-tag-type|"
     "sft-tokenizer-prompt-format|chat-template",
     kValue, kOtherTokenizer},
    {"force-system-message", kSwitch, kOtherTokenizer},
};

// Returns the words of a flag that may be given several times.
std::vector<std::string> words_of(const cxxopts::ParseResult& parsed, const std::string& name) {
  std::vector<std::string> words;
  for (const cxxopts::KeyValue& flag : parsed.arguments())
    if (flag.key() == name) words.push_back(flag.value());
  return words;
}

// Returns whether the inputs are plain text. Pipes are if --documents is given.
bool is_text(const cxxopts::ParseResult& parsed, const std::vector<std::string>& inputs) {
  const auto text = [&](const std::string& input) {
    const auto kind = kind_by_name(input);
    return kind ? *kind == TextKind::kPlain : parsed.count("documents") > 0;
  };
  for (const std::string& input : inputs)
    if (text(input) != text(inputs[0]))
      throw_error("--input ", text(input) ? input : inputs[0], " is text, but ",
                  text(input) ? inputs[0] : input, " is JSON lines; one run takes one of the two");
  return text(inputs[0]);
}

}  // namespace

std::vector<std::string> without_foreign_flags(const std::vector<std::string>& args,
                                               std::vector<std::string>& ignored) {
  std::vector<std::string> ours;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].substr(0, args[i].find('='));
    const Foreign* foreign =
        name.starts_with("--") ? find_foreign(kForeignFlags, name.substr(2)) : nullptr;
    if (foreign == nullptr) {
      ours.push_back(args[i]);
      continue;
    }
    std::string origin = args[i], value = args[i].substr(std::min(name.size() + 1, args[i].size()));
    while (foreign->takes_value && i + 1 < args.size() && !args[i + 1].starts_with("--"))
      origin += " " + (value = args[++i]);
    foreign->check(origin, value);
    if (foreign->ignored()) ignored.push_back(name);
  }
  return ours;
}

std::string foreign_flags_help() {
  return "Accepted from Megatron's preprocess_data.py, without effect on the tokens here:\n" +
         ignored_flags_text(kForeignFlags);
}

std::vector<std::string> repeat_flags(const std::vector<std::string>& args) {
  std::vector<std::string> repeated;
  std::string list;  // the flag whose values these are
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with("--")) list.clear();
    if (!list.empty() && args[i - 1] != list) repeated.push_back(list);
    repeated.push_back(args[i]);
    if (args[i] == "--input" || args[i] == "--json-keys") list = args[i];
  }
  return repeated;
}

std::vector<std::string> inputs_of(const cxxopts::ParseResult& parsed) {
  std::vector<std::string> words;
  for (const std::string& word : words_of(parsed, "input")) {
    if (std::error_code ignored; std::filesystem::exists(word, ignored)) {
      words.push_back(word);
    } else {
      for (const std::string_view part : split(word, ',')) words.emplace_back(part);
    }
  }
  return expand_inputs(words);
}

std::optional<DocumentUnit> unit_of(const cxxopts::ParseResult& parsed,
                                    const std::vector<std::string>& inputs) {
  const bool text = is_text(parsed, inputs);
  const char* foreign = text ? "json-keys" : "documents";
  if (parsed.count(foreign) > 0) throw_error("--", foreign, " is not for --input ", inputs[0]);
  if (!text) return std::nullopt;
  const std::string unit = text_of(parsed, "documents");
  if (unit == "file") return DocumentUnit::kFile;
  if (unit == "paragraph") return DocumentUnit::kParagraph;
  if (unit == "line") return DocumentUnit::kLine;
  throw_error("--documents ", unit, ": expected file, paragraph or line");
}

}  // namespace anymesh
