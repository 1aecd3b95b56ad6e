#include <algorithm>
#include <tuple>
#include <utility>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

// The text is valid UTF-8, and not empty.
CodePoint last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return decode_utf8(text.substr(begin));
}

// Returns how many bytes of white space are in front of a text, or `behind`, at its end.
size_t spaces(std::string_view text, bool behind) {
  size_t count = 0;
  while (count < text.size()) {
    const CodePoint c = behind ? last_character(text.substr(0, text.size() - count))
                               : decode_utf8(text.substr(count));
    if (!is_white_space(c.value)) break;
    count += c.bytes;
  }
  return count;
}

bool is_inside_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(last_character(text.substr(0, begin)).value)) ||
         (end < text.size() && is_word(decode_utf8(text.substr(end)).value));
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  find_by(token, tokens_.size());
  indices_[token.content] = tokens_.size();
  tokens_.push_back(std::move(token));
}

void AddedTokens::find_by(const AddedToken& token, size_t index) {
  Finder& finder = finders_[token.normalized];
  finder.trie.insert(token.normal, static_cast<int32_t>(index));
  finder.begins[static_cast<unsigned char>(token.normal[0])] = true;
}

int32_t AddedTokens::add(AddedToken token, const JsonNode& origin, const Normalizer& normalizer,
                         Vocabulary& vocabulary) {
  if (next_ < 0) next_ = static_cast<int32_t>(vocabulary.count());
  token.normal = token.content;
  bool at_start = true;
  try {
    if (token.normalized && normalizer) normalizer(token.normal, at_start);
  } catch (const UserError& error) {
    origin.refuse(std::string("is refused: ") + error.what());
  }
  if (token.normal.empty()) origin.fail("is nothing after normalizing");
  if (const auto known = indices_.find(token.content); known != indices_.end()) {
    AddedToken& before = tokens_[known->second];
    finders_[before.normalized].trie.insert(before.normal, -1);
    find_by(token, known->second);
    token.id = before.id;
    token.special |= before.special;
    before = std::move(token);
    return before.id;
  }
  const auto known = vocabulary.find(token.content);
  token.id = known.value_or(next_);
  if (!known && !vocabulary.add(token.content, token.id))
    origin.fail("has the id " + std::to_string(token.id) + " of another token");
  next_ = std::max(next_, token.id + 1);
  add(std::move(token));
  return tokens_.back().id;
}

void AddedTokens::split(std::string_view text, bool normalized,
                        std::vector<Section>& sections) const {
  const Finder& finder = finders_[normalized];
  size_t covered = 0;
  for (size_t at = finder.trie.empty() ? text.size() : 0; at < text.size();) {
    size_t size = 0;
    int32_t index = -1;
    if (finder.begins[static_cast<unsigned char>(text[at])])
      finder.trie.for_each_prefix(text.substr(at), [&](size_t longer, int32_t value) {
        std::tie(size, index) = std::pair(longer, value);
      });
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = std::exchange(at, at + size), end = at;
    if (split_special_ && token.special) continue;
    if (token.single_word && is_inside_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(begin - spaces(text.substr(0, begin), true), covered);
    if (token.rstrip) end += spaces(text.substr(end), false);
    if (begin > covered) sections.push_back({text.substr(covered, begin - covered), -1});
    sections.push_back({text.substr(begin, end - begin), token.id});
    covered = end;
  }
  if (covered < text.size()) sections.push_back({text.substr(covered), -1});
}

AddedTokens read_added_tokens(const JsonNode& node, const Normalizer& normalizer,
                              Vocabulary& vocabulary) {
  AddedTokens all;
  if (node.is_null()) return all;
  for (const JsonNode& each : node.list()) {
    AddedToken token = read_added_token(each);
    if (token.content.empty()) continue;
    const std::string content = token.content;
    const int32_t id = all.add(std::move(token), each, normalizer, vocabulary);
    if (const JsonNode given = each.at("id"); given.integer(0, Vocabulary::kMostIds) != id)
      given.expected(std::to_string(id) + ", which the token " + printable(content) +
                     " has by the order of the file");
  }
  return all;
}

}  // namespace anymesh
