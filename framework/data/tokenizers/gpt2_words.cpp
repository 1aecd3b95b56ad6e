#include <utf8proc.h>

#include <array>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

enum class CharClass : char { kLetter, kNumber, kSpace, kOther };

// Classifies as regular expressions do: \p{L}, \p{N}, and Unicode's White_Space.
CharClass classify_any(char32_t c) {
  if (is_white_space(c)) return CharClass::kSpace;
  switch (utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0]) {
    case 'L':
      return CharClass::kLetter;
    case 'N':
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

CharClass classify(const CodePoint& c) {
  static const auto kAscii = [] {
    std::array<CharClass, 0x80> classes{};
    for (char32_t value = 0; value < 0x80; ++value) classes[value] = classify_any(value);
    return classes;
  }();
  if (!c.valid) return CharClass::kOther;
  return c.value < 0x80 ? kAscii[c.value] : classify_any(c.value);
}

// Returns the end of the run of `wanted` characters that begins at `begin`.
size_t run_end(std::string_view text, size_t begin, CharClass wanted) {
  size_t end = begin;
  while (end < text.size()) {
    const CodePoint c = decode_utf8(text.substr(end));
    if (classify(c) != wanted) break;
    end += c.bytes;
  }
  return end;
}

// Returns the length of the white space in front. Its last character is left to a word behind it.
size_t space_run(std::string_view text) {
  const size_t end = run_end(text, 0, CharClass::kSpace);
  size_t last = end - 1;  // where its last character begins
  while ((text[last] & 0xc0) == 0x80) --last;
  return end < text.size() && last > 0 ? last : end;
}

// Returns the length of the word at the front of a non-empty text.
size_t next_word(std::string_view text) {
  if (text[0] == '\'') {
    for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.starts_with(suffix)) return suffix.size();
  }
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const CharClass first = classify(decode_utf8(text.substr(begin)));
  return first == CharClass::kSpace ? space_run(text) : run_end(text, begin, first);
}

}  // namespace

// Splits by 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 counts as punctuation.
void split_gpt2_words(Pieces& pieces) {
  std::vector<std::string_view> words;
  words.reserve(pieces.views.size());
  for (std::string_view rest : pieces.views)
    for (; !rest.empty(); rest.remove_prefix(words.back().size()))
      words.push_back(rest.substr(0, next_word(rest)));
  pieces.views = std::move(words);
}

}  // namespace anymesh
