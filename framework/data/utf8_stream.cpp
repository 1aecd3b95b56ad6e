#include "framework/data/utf8_stream.h"

#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Returns whether more bytes could make the text one character. Tries the least and the greatest
// continuation byte, since the bytes that are allowed to follow always include one of them.
bool is_beginning(std::string_view text) {
  if (text.size() > 3) return false;
  for (const char byte : {'\x80', '\xbf'})
    if (decode_utf8(std::string(text) + std::string(3, byte)).bytes > text.size()) return true;
  return false;
}

}  // namespace

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
