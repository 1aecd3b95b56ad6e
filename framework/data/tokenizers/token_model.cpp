#include "framework/data/tokenizers/token_model.h"

#include <algorithm>

#include "framework/data/json_line.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

void read_bpe_vocabulary(const JsonNode& vocab, std::string_view text, Vocabulary& vocabulary) {
  if (!vocab.is_object()) vocab.expected("an object of tokens and ids");
  const auto members = members_of(text);
  const int64_t most =
      std::min<int64_t>(Vocabulary::kMostIds, std::ssize(members) + Vocabulary::kMostGaps);
  for (const auto& [token, value] : members) {
    auto id = parse_number<int64_t>(value);
    if (!id || *id < 0 || *id >= most) {
      const auto json = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
      id = JsonNode(json, vocab.file(), "model.vocab of the token \"" + token + "\"")
               .integer(0, most - 1);
    }
    if (!vocabulary.add(token, static_cast<int32_t>(*id)))
      vocab.fail("has " + printable(token) + " with the id " + std::to_string(*id) +
                 " of another token");
  }
}

BpeOptions read_bpe_options(const JsonNode& node, const Vocabulary& vocabulary) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!node.at(key).text_or("").empty()) node.at(key).refuse("is set, which is not supported");
  if (const JsonNode dropout = node.at("dropout"); !dropout.is_null() && dropout.number() != 0)
    dropout.refuse("is not 0, which is not supported: the same text would give other tokens");
  BpeOptions options{.ignore_merges = node.at("ignore_merges").flag_or(false),
                     .byte_fallback = node.at("byte_fallback").flag_or(false),
                     .fuse_unk = node.at("fuse_unk").flag_or(false)};
  if (const JsonNode unk = node.at("unk_token"); !unk.is_null()) {
    options.unk = vocabulary.find(unk.text());
    if (!options.unk) unk.fail("is " + printable(unk.text()) + ", which is not in model.vocab");
  }
  return options;
}

// Returns a text. A file may have millions, so its path is made for an error alone.
template <class NodeOf>
std::string_view text_of(const nlohmann::json& json, const NodeOf& node_of) {
  return json.is_string() ? json.get_ref<const std::string&>() : node_of().text();
}

// A merge is "left right" or ["left", "right"].
void add_merges(const JsonNode& merges, const Vocabulary& vocabulary, Bpe& bpe) {
  const size_t count = merges.list_size();
  std::string joined;
  for (size_t rank = 0; rank < count; ++rank) {
    const nlohmann::json& merge = merges.json()[rank];
    std::string_view left, right;
    if (merge.is_array() && merge.size() == 2) {
      for (size_t part = 0; part < 2; ++part)
        (part == 0 ? left : right) = text_of(merge[part], [&] { return merges.at(rank).at(part); });
    } else {
      const std::string_view both =
          merge.is_array() ? "" : text_of(merge, [&] { return merges.at(rank); });
      const size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos)
        merges.at(rank).expected("two tokens");
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    const auto id_of = [&](std::string_view token) {
      const auto id = vocabulary.find(token);
      if (!id)
        merges.at(rank).fail("needs the token " + printable(token) +
                             ", which is not in model.vocab");
      return *id;
    };
    joined.assign(left).append(right);
    const int32_t left_id = id_of(left), right_id = id_of(right);
    bpe.add_merge(left_id, right_id, static_cast<uint32_t>(rank), id_of(joined));
  }
}

std::unique_ptr<TokenModel> read_bpe(const JsonNode& node, std::string_view vocab, bool bytes,
                                     Vocabulary& vocabulary) {
  read_bpe_vocabulary(node.at("vocab"), vocab, vocabulary);
  BpeOptions options = read_bpe_options(node, vocabulary);
  options.bytes = bytes;
  if (bytes && options.byte_fallback)
    node.at("byte_fallback").refuse("is true beside a ByteLevel pre-tokenizer: not supported");
  auto bpe = std::make_unique<Bpe>(vocabulary, options);
  add_merges(node.at("merges"), vocabulary, *bpe);
  return bpe;
}

std::unique_ptr<TokenModel> read_unigram(const JsonNode& node, Vocabulary& vocabulary) {
  const JsonNode vocab = node.at("vocab");
  const auto count = static_cast<int64_t>(vocab.list_size());
  if (count > Vocabulary::kMostIds) vocab.fail("has more than 2^24 tokens");
  std::vector<double> scores;
  for (int64_t id = 0; id < count; ++id) {
    const JsonNode entry = vocab.at(static_cast<size_t>(id));
    if (!entry.is_list() || entry.list_size() != 2) entry.expected("a token and its score");
    vocabulary.add(entry.at(size_t{0}).text(), static_cast<int32_t>(id), /*again=*/true);
    scores.push_back(entry.at(size_t{1}).number());
  }
  std::optional<int32_t> unk;
  if (const JsonNode id = node.at("unk_id"); !id.is_null())
    unk = static_cast<int32_t>(id.integer(0, count - 1));
  return make_unigram(vocabulary, std::move(scores), unk, node.at("byte_fallback").flag_or(false));
}

}  // namespace

std::unique_ptr<TokenModel> read_token_model(const JsonNode& node, std::string_view vocab,
                                             bool bytes, Vocabulary& vocabulary) {
  if (!node.is_object()) node.expected("an object");
  const std::string type = node.at("type").text_or(
      node.at("merges").is_null() ? node.at("vocab").is_list() ? "Unigram" : "WordPiece" : "BPE");
  if (type == "BPE") return read_bpe(node, vocab, bytes, vocabulary);
  if (type == "Unigram" && bytes)
    node.at("type").refuse("is Unigram beside a ByteLevel pre-tokenizer: not supported");
  if (type == "Unigram") return read_unigram(node, vocabulary);
  node.at("type").refuse("is " + printable(type) + ", a model that is not supported");
}

}  // namespace anymesh
