#include <algorithm>

#include "framework/data/tokenizers/base64.h"
#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

// Megatron's two expressions.
constexpr const char* kPatternV1 =
    R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kPatternV2 =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Ranks = std::vector<std::string>;  // the bytes of each rank

Ranks read_json_ranks(const std::string& file, std::string text) {
  const JsonFile json(file, std::move(text));
  Ranks ranks;
  for (const JsonNode& entry : json.root().list()) {
    const auto rank = static_cast<int64_t>(ranks.size());
    entry.at("rank").integer(rank, rank);
    const auto bytes = decode_base64(entry.at("token_bytes").text());
    if (!bytes) entry.at("token_bytes").expected("base64");
    ranks.push_back(*bytes);
  }
  return ranks;
}

Ranks read_lines(const std::string& file, std::string_view text) {
  Ranks ranks;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    const auto bytes = decode_base64(line.substr(0, space));
    const auto rank = parse_number<int64_t>(line.substr(std::min(space + 1, line.size())));
    if (!bytes || bytes->empty() || rank != static_cast<int64_t>(ranks.size()))
      throw_error<DamagedFile>(file, ":", ranks.size() + 1, ": ", printable(line),
                               ", expected \"base64 ", ranks.size(), "\"");
    ranks.push_back(*bytes);
  }
  return ranks;
}

Ranks read_ranks(const std::string& file, const TiktokenOptions& options) {
  std::string text = read_tokenizer_file(file, TokenizerFile::kTiktoken);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && text[first] == '[';
  Ranks ranks = json ? read_json_ranks(file, std::move(text)) : read_lines(file, text);
  const int64_t count = std::ssize(ranks), most = Vocabulary::kMostIds / 2;
  if (count > most) throw_error<DamagedFile>(file, ": has more than ", most, " tokens");
  const int64_t wanted =
      options.vocab_size > 0 ? options.vocab_size - options.special_tokens : count;
  if (wanted < 256 || wanted > count)
    throw_error(file, ": has ", count, " tokens, and ", options.special_tokens,
                " special ones are added; --vocab-size ", options.vocab_size,
                " does not fit: expected ", 256 + options.special_tokens, " to ",
                count + options.special_tokens);
  ranks.resize(static_cast<size_t>(wanted));
  return ranks;
}

std::vector<std::string> special_texts(int64_t count) {
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};
  if (count < std::ssize(texts) || count > Vocabulary::kMostIds / 2)
    throw_error("--tiktoken-num-special-tokens ", count, ": expected ", texts.size(), " to ",
                Vocabulary::kMostIds / 2);
  for (int64_t i = std::ssize(texts); i < count; ++i)
    texts.push_back("<SPECIAL_" + std::to_string(i) + ">");
  return texts;
}

// Each way to cut a token into two tokens is a merge.
void add_rank_merges(const Ranks& ranks, const StringMap<int32_t>& rank_of, int32_t first_id,
                     Bpe& bpe) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string_view token = ranks[rank];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = rank_of.find(token.substr(0, cut)), right = rank_of.find(token.substr(cut));
      if (left == rank_of.end() || right == rank_of.end()) continue;
      bpe.add_merge(first_id + left->second, first_id + right->second, static_cast<uint32_t>(rank),
                    first_id + static_cast<int32_t>(rank));
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const std::string& file,
                                                   const TiktokenOptions& options) {
  if (options.pattern != "v1" && options.pattern != "v2")
    throw_error("--tiktoken-pattern ", options.pattern, ": expected v1 or v2");
  const auto special = special_texts(options.special_tokens);
  const auto first_id = static_cast<int32_t>(special.size());
  const Ranks ranks = read_ranks(file, options);
  auto parts = std::make_unique<TokenizerParts>();
  StringMap<int32_t> rank_of;
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks.size()); ++rank) {
    const std::string& bytes = ranks[static_cast<size_t>(rank)];
    if (bytes.size() > 1024 || !rank_of.emplace(bytes, rank).second)
      throw_error<DamagedFile>(file, ": token ", rank,
                               " is there twice, or longer than 1024 bytes");
    parts->vocabulary.add(spell_bytes(bytes), first_id + rank);
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!rank_of.contains(std::string(1, static_cast<char>(byte))))
      throw_error<DamagedFile>(file, ": lacks a token for the byte ", byte);
  auto bpe =
      std::make_unique<Bpe>(parts->vocabulary, BpeOptions{.bytes = true, .ignore_merges = true});
  add_rank_merges(ranks, rank_of, first_id, *bpe);
  parts->model = std::move(bpe);
  for (int32_t id = 0; id < first_id; ++id) {
    const std::string& text = special[static_cast<size_t>(id)];
    parts->vocabulary.add(text, id, /*again=*/true);
    parts->added_tokens.add({.content = text, .id = id});
  }
  parts->pre_tokenizers.push_back(
      take_matches(pcre2_from_oniguruma(options.pattern == "v1" ? kPatternV1 : kPatternV2)));
  parts->decoder = decode_spelled_bytes;
  parts->bos = 1;
  parts->eod = 2;
  parts->text_ends = {parts->eod};
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace anymesh
