#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace anymesh {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 1;
  bool valid = false;
};

// Returns the code point at the front of a non-empty text. A byte that begins no valid UTF-8
// sequence is one invalid code point.
inline CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t size = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (size == 0 || size > text.size()) return {};
  char32_t value = lead & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6 != 2) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >> 11 == 0x1B;
  if (value < kLeast[size] || surrogate || value > 0x10FFFF) return {};
  return {value, size, true};
}

// Returns the UTF-8 of a code point below 0x800.
inline std::string encode_utf8(char32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

}  // namespace anymesh
