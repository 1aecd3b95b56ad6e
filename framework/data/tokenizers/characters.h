#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace anymesh {

// Classes of characters, by utf8proc's Unicode. A byte that is no UTF-8 belongs to none of them.
bool is_white_space(char32_t c);  // Unicode's White_Space
bool is_numeric(char32_t c);      // \p{N}
bool is_punctuation(char32_t c);  // \p{P}, and ASCII's $+<=>^`|~
bool is_word(char32_t c);         // \w of regular expressions

// Appends a code point as UTF-8.
void append_utf8(char32_t c, std::string& text);

bool is_utf8(std::string_view text);
// Returns the text with U+FFFD in place of each byte that is no UTF-8.
std::string replace_invalid_utf8(std::string_view text);

// GPT-2's byte-level vocabularies spell bytes as printable characters. Bytes that are printable in
// Latin-1 are spelled as themselves; the others, in order, as U+0100 and up.
std::string spell_bytes(std::string_view bytes);
// Returns the bytes that a token spells; none if it has other characters, as special tokens do.
std::optional<std::string> spelled_bytes(std::string_view token);

// Returns the byte of a token "<0x41>", as vocabularies with byte_fallback have them.
std::optional<uint8_t> fallback_byte(std::string_view token);
std::string fallback_token(uint8_t byte);

}  // namespace anymesh
