#pragma once

#include <cstddef>
#include <string_view>

namespace anymesh {

// Returns the length of the word at the front of a non-empty text, by GPT-2's pre-tokenizer:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 counts as punctuation.
size_t next_word(std::string_view text);

}  // namespace anymesh
