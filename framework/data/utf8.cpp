#include "framework/data/utf8.h"

namespace anymesh {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Whether more bytes could make it one character: whichever is allowed to follow, the least or the
// greatest continuation byte is among it.
bool is_beginning(std::string_view text) {
  if (text.size() > 3) return false;
  for (const char byte : {'\x80', '\xbf'})
    if (decode_utf8(std::string(text) + std::string(3, byte)).bytes > text.size()) return true;
  return false;
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1, true};
  const size_t bytes = byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (bytes == 0 || byte(0) > 0xf4 || text.size() < bytes) return {};
  char32_t value = byte(0) & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (overlong || surrogate || value > 0x10ffff) return {};
  return {value, bytes, true};
}

std::string Utf8Stream::take(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const CodePoint c = decode_utf8(rest);
    if (!c.valid && is_beginning(rest)) break;
    text += c.valid ? rest.substr(0, c.bytes) : kReplacement;
    rest.remove_prefix(c.bytes);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  std::string text;
  for (; !pending_.empty(); pending_.erase(0, 1)) text += kReplacement;
  return text;
}

}  // namespace anymesh
