#include "framework/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "framework/data/tokenizers/characters.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

// The text is valid UTF-8, and not empty.
CodePoint last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return decode_utf8(text.substr(begin));
}

size_t spaces_before(std::string_view text) {
  size_t count = 0;
  while (count < text.size()) {
    const CodePoint c = last_character(text.substr(0, text.size() - count));
    if (!is_white_space(c.value)) break;
    count += c.bytes;
  }
  return count;
}

size_t spaces_behind(std::string_view text) {
  size_t count = 0;
  while (count < text.size()) {
    const CodePoint c = decode_utf8(text.substr(count));
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
  Finder& finder = finders_[token.normalized];
  finder.trie.insert(token.normal, static_cast<int32_t>(tokens_.size()));
  finder.begins[static_cast<unsigned char>(token.normal[0])] = true;
  tokens_.push_back(std::move(token));
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
    if (token.single_word && is_inside_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(begin - spaces_before(text.substr(0, begin)), covered);
    if (token.rstrip) end += spaces_behind(text.substr(end));
    if (begin > covered) sections.push_back({text.substr(covered, begin - covered), -1});
    sections.push_back({text.substr(begin, end - begin), token.id});
    covered = end;
  }
  if (covered < text.size()) sections.push_back({text.substr(covered), -1});
}

AddedTokens read_added_tokens(const JsonNode& node, const Normalizer* normalizer,
                              Vocabulary& vocabulary) {
  AddedTokens all;
  if (node.is_null()) return all;
  auto next = static_cast<int32_t>(vocabulary.count());
  for (const JsonNode& each : node.list()) {
    AddedToken token{
        .content = each.at("content").text(),
        .single_word = each.at("single_word").flag_or(false),
        .lstrip = each.at("lstrip").flag_or(false),
        .rstrip = each.at("rstrip").flag_or(false),
        .normalized = each.at("normalized").flag_or(!each.at("special").flag_or(false))};
    if (token.content.empty()) continue;
    const auto known = vocabulary.find(token.content);
    token.id = known ? *known : next++;
    if (const JsonNode id = each.at("id"); id.integer(0, Vocabulary::kMostIds) != token.id)
      id.expected(std::to_string(token.id) + ", which the token " + printable(token.content) +
                  " has by the order of the file");
    if (!known && !vocabulary.add(token.content, token.id))
      each.fail("has the id " + std::to_string(token.id) + " of another token");
    token.normal = token.content;
    bool at_start = true;
    if (token.normalized && normalizer != nullptr) normalizer->apply(token.normal, at_start);
    if (token.normal.empty()) each.fail("is nothing after normalizing");
    all.add(std::move(token));
  }
  return all;
}

}  // namespace anymesh
