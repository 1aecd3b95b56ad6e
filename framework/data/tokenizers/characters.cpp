#include "framework/data/tokenizers/characters.h"

#include <utf8proc.h>

#include <charconv>
#include <unordered_map>

#include "framework/util/utf8.h"

namespace anymesh {
namespace {

char32_t category_of(char32_t c) {
  return static_cast<unsigned char>(utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0]);
}

std::array<char32_t, 256> byte_spelling() {
  std::array<char32_t, 256> spelling{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    spelling[byte] = printable ? byte : next++;
  }
  return spelling;
}

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || category_of(c) == 'Z';
}

bool is_numeric(char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : category_of(c) == 'N'; }

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && (c == '_' || !is_word(c));
  return category_of(c) == 'P';
}

// Unicode's Alphabetic, marks, decimal digits, connectors and joiners.
bool is_word(char32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  const bool circled_letter = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                              (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  const bool joiner = c == 0x200C || c == 0x200D;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category_of(c) == 'L' || category_of(c) == 'M' || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC || circled_letter ||
         joiner;
}

void append_utf8(char32_t c, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (!c.valid) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    valid += c.valid ? text.substr(0, c.bytes) : "\ufffd";
    text.remove_prefix(c.bytes);
  }
  return valid;
}

std::string spell_bytes(std::string_view bytes) {
  static const auto kSpelling = byte_spelling();
  std::string text;
  for (const char byte : bytes) text += encode_utf8(kSpelling[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> spelled_bytes(std::string_view token) {
  static const auto kBytes = [] {
    std::array<int, 0x200> bytes;
    bytes.fill(-1);
    const auto spelling = byte_spelling();
    for (int byte = 0; byte < 256; ++byte) bytes[spelling[static_cast<size_t>(byte)]] = byte;
    return bytes;
  }();
  std::string bytes;
  while (!token.empty()) {
    const CodePoint c = decode_utf8(token);
    if (!c.valid || c.value >= kBytes.size() || kBytes[c.value] < 0) return {};
    bytes += static_cast<char>(kBytes[c.value]);
    token.remove_prefix(c.bytes);
  }
  return bytes;
}

std::optional<uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return {};
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return {};
  return byte;
}

std::string fallback_token(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace anymesh
