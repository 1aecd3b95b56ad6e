#include "tools/preprocess/input_flags.h"

#include <filesystem>
#include <system_error>

#include "framework/data/inputs/input_list.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

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
