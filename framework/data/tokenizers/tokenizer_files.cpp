#include "framework/data/tokenizers/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "framework/data/tokenizers/json_node.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Kind {
  const char *what, *advice;
  const char *wanted = "", *flag = "";  // for messages, where a flag takes it
};
constexpr const char* kModelFlag = " (--tokenizer-model)";
constexpr Kind kKinds[] = {  // by TokenizerFile, and then those that no flag takes
    {"a vocab.json",
     "Give it as --vocab-file, with its merges.txt as --merge-file and --tokenizer-type "
     "GPT2BPETokenizer",
     "GPT-2's vocab.json", " (--vocab-file)"},
    {"a merges.txt", "Give it as --merge-file", "GPT-2's merges.txt", " (--merge-file)"},
    {"a SentencePiece model",
     "Give it as --tokenizer-model, with --tokenizer-type GPTSentencePieceTokenizer",
     "the .model file of SentencePiece", kModelFlag},
    {"a tokenizer.json of transformers",
     "Give it as --tokenizer-model, with --tokenizer-type HFTokenizer", "a tokenizer.json",
     kModelFlag},
    {"a file of tiktoken", "Give it as --tokenizer-model, with --tokenizer-type TikTokenizer",
     "a file of tiktoken", kModelFlag},
    {"the list of a SentencePiece model's pieces",
     "Give the .model beside it as --tokenizer-model"},
    {"compressed by gzip", "Unpack it with gunzip"}};
constexpr const Kind *kPieces = kKinds + 5, *kGzip = kKinds + 6;

constexpr const Kind* kind_of(TokenizerFile file) { return kKinds + static_cast<size_t>(file); }

// Returns whether the first lines are "base64 rank", with the ranks one after the other.
bool is_tiktoken(std::string_view text) {
  if (text.empty()) return false;
  for (int rank = 0; rank < 3 && !text.empty(); ++rank) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t space = std::min(line.find(' '), line.size());
    const bool base64 = space > 0 && space % 4 == 0 &&
                        std::ranges::all_of(line.substr(0, space), [](unsigned char c) {
                          return std::isalnum(c) || c == '+' || c == '/' || c == '=';
                        });
    if (!base64 || line.substr(space) != " " + std::to_string(rank)) return false;
  }
  return true;
}

// Returns whether the text begins with a protobuf's field 1, a piece, which begins with its own
// field 1, the piece's text.
bool is_sentencepiece(std::string_view text) {
  return text.size() > 4 && text[0] == '\n' && text[2] == '\n' && text[3] > 0 && text[3] < text[1];
}

// Returns null for a text of none of these kinds.
const Kind* kind_of(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  if (text.starts_with("\x1f\x8b")) return kGzip;
  if (is_sentencepiece(text)) return kind_of(TokenizerFile::kSentencePiece);
  if (text.substr(first).starts_with('{')) {
    const bool parts = text.find("\"pre_tokenizer\"") != std::string_view::npos &&
                       text.find("\"added_tokens\"") != std::string_view::npos;
    return kind_of(parts ? TokenizerFile::kTokenizerJson : TokenizerFile::kVocabulary);
  }
  if (text.substr(first).starts_with('[')) {
    const bool ranks = text.substr(0, 4096).find("\"token_bytes\"") != std::string_view::npos;
    return ranks ? kind_of(TokenizerFile::kTiktoken) : nullptr;
  }
  if (text.starts_with("#version")) return kind_of(TokenizerFile::kMerges);
  if (text.starts_with("<unk>\t") || text.starts_with("<pad>\t")) return kPieces;
  return is_tiktoken(text) ? kind_of(TokenizerFile::kTiktoken) : nullptr;
}

bool is_one_of(const Json& value, std::initializer_list<Json> known) {
  return std::find(known.begin(), known.end(), value) != known.end();
}

// Returns the first setting that splits text otherwise than GPT-2's tokenizer; empty: there is
// none.
std::string unlike_gpt2(const JsonNode& tokenizer) {
  const auto is = [](const std::string& key, const Json& value) {
    return "its " + key + " is " + printable(value.dump());
  };
  if (const JsonNode value = tokenizer.at("normalizer"); !value.is_null())
    return is("normalizer", value.json());
  Json split = tokenizer.at("pre_tokenizer").json();
  if (const Json parts = member(split, "pretokenizers"); parts.is_array() && parts.size() == 1)
    split = parts[0];
  if (member(split, "type") != "ByteLevel" ||
      !is_one_of(member(split, "add_prefix_space"), {nullptr, false}) ||
      !is_one_of(member(split, "use_regex"), {nullptr, true}))
    return is("pre_tokenizer", split);
  const Json &model = tokenizer.at("model").json(), type = member(model, "type");
  if (!is_one_of(type, {nullptr, "BPE"})) return is("model.type", type);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "ignore_merges",
                          "byte_fallback", "dropout"})
    if (const Json value = member(model, key); !is_one_of(value, {nullptr, false, "", 0}))
      return is(std::string("model.") + key, value);
  return "";
}

// Returns the same for a package without a tokenizer.json. Other classes have their own code.
std::string class_unlike_gpt2(const Json& config) {
  const Json name = member(config, "tokenizer_class"), prefix = member(config, "add_prefix_space");
  if (!is_one_of(name, {nullptr, "GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer",
                        "CodeGenTokenizerFast"}))
    return "its tokenizer_class is " + printable(name.dump());
  return prefix == true ? "its add_prefix_space is true" : "";
}

}  // namespace

std::string read_tokenizer_file(const std::string& file, TokenizerFile expected) {
  const Kind* const wanted = kind_of(expected);
  std::string text;
  try {
    text = read_file(file);
  } catch (const std::runtime_error& error) {
    throw_error(error.what(), wanted->flag);
  }
  const Kind* found = kind_of(text);
  if (found && found != wanted)
    throw_error(file, ": is ", found->what, "; expected ", wanted->wanted, wanted->flag, ". ",
                found->advice);
  return text;
}

void check_splits_as_gpt2(const std::string& vocab_file) {
  const fs::path folder = fs::path(vocab_file).parent_path(), tokenizer = folder / "tokenizer.json",
                 config = folder / "tokenizer_config.json";
  const bool whole = fs::is_regular_file(tokenizer);
  if (!whole && !fs::is_regular_file(config)) return;
  const fs::path& beside = whole ? tokenizer : config;
  const JsonFile settings(beside);
  const std::string unlike =
      whole ? unlike_gpt2(settings.root()) : class_unlike_gpt2(settings.root().json());
  if (!unlike.empty())
    throw_error(vocab_file, ": ", beside.string(),
                " says that this tokenizer does not split text as GPT-2's, as "
                "GPT2BPETokenizer does: ",
                unlike,
                whole ? ". Use --tokenizer-type HFTokenizer --tokenizer-model "
                      : ". Its tokenizer.json would, with --tokenizer-type HFTokenizer",
                whole ? folder.empty() ? "." : folder.string() : "");
}

}  // namespace anymesh
