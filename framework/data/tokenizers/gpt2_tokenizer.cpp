#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/data/json_line.h"
#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"
#include "framework/util/errors.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

void read_gpt2_vocabulary(const std::string& file, Vocabulary& vocabulary) {
  const std::string text = read_tokenizer_file(file, TokenizerFile::kVocabulary);
  check_splits_as_gpt2(file);
  std::vector<std::pair<std::string, std::string_view>> members;
  try {
    members = members_of(text);
  } catch (const UserError& error) {
    throw_error(file, ": ", error.what());
  }
  if (members.empty()) throw_error(file, ": expected one JSON object of \"token\": id");
  for (const auto& [token, id] : members) {
    const auto number = parse_number<int32_t>(id);
    if (!number || *number < 0 || *number >= std::ssize(members) || !vocabulary.add(token, *number))
      throw_error(file, ": token ", nlohmann::json(token).dump(), " has id ", printable(id),
                  ", expected each of 0 to ", members.size() - 1, " once");
  }
}

void check_bytes(const std::string& file, const Vocabulary& vocabulary) {
  std::vector<std::string> needed = {kEndOfText};
  for (int byte = 0; byte < 256; ++byte)
    needed.push_back(spell_bytes(std::string(1, static_cast<char>(byte))));
  for (const std::string& token : needed)
    if (!vocabulary.find(token)) throw_error(file, ": lacks the token \"", token, "\"");
}

void read_merges(const std::string& file, const Vocabulary& vocabulary, Bpe& bpe) {
  std::istringstream in(read_tokenizer_file(file, TokenizerFile::kMerges));
  std::string line;
  for (uint32_t number = 1; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::string where = file + ":" + std::to_string(number) + ": ";
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      throw_error(where, "expected two tokens and a space between them, got \"", line, "\"");
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary.find(token);
      if (!id) throw_error(where, "\"", token, "\" is not in the vocabulary");
      return *id;
    };
    const std::string left = line.substr(0, space), right = line.substr(space + 1);
    const int32_t left_id = id_of(left), right_id = id_of(right);
    bpe.add_merge(left_id, right_id, number, id_of(left + right));
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& vocab_file,
                                               const std::string& merge_file) {
  auto parts = std::make_unique<TokenizerParts>();
  read_gpt2_vocabulary(vocab_file, parts->vocabulary);
  check_bytes(vocab_file, parts->vocabulary);
  auto bpe =
      std::make_unique<Bpe>(parts->vocabulary, BpeOptions{.bytes = true, .whole_passes = true});
  read_merges(merge_file, parts->vocabulary, *bpe);
  parts->model = std::move(bpe);
  parts->pre_tokenizers.emplace_back(split_gpt2_words);
  parts->decoder = decode_spelled_bytes;
  parts->any_bytes = true;
  parts->eod = parts->bos = *parts->vocabulary.find(kEndOfText);
  parts->text_ends = {parts->eod};
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace anymesh
