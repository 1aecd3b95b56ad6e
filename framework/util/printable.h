#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "framework/util/utf8.h"

namespace anymesh {

// Prepares text from a file or a folder for a message or a table. Characters that would control a
// terminal or end a C string are escaped, and the middle of a long text is left out. UTF-8 stays as
// it is.
//
//   printable("a\x1b[2J\nb")     a\x1b[2J\nb      with literal backslashes
//   printable(five_megabytes)    aaaa...(5000000 bytes)...aaaa
//
// Escaping twice is the same as escaping once, so a whole message can be made printable too.

// Returns the size of the first character of a non-empty text, or 0 if it cannot be printed as it
// is: a control character, one that turns or breaks the line, or a byte that is not UTF-8.
inline size_t printable_bytes(std::string_view text) {
  const auto [code, bytes, valid] = decode_utf8(text);
  const bool controls = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool turns = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) ||
                     code == 0x200E || code == 0x200F || code == 0x061C;
  const bool breaks = code == 0x2028 || code == 0x2029;
  return !valid || controls || turns || breaks ? 0 : bytes;
}

inline std::string printable(std::string_view text, size_t most = 200, bool keep_lines = false) {
  if (text.size() > most) {
    size_t head = most / 4 * 3, tail = text.size() - most / 4;  // never inside a character
    while (head > 0 && (text[head] & 0xC0) == 0x80 && most / 4 * 3 - head < 3) --head;
    while (tail < text.size() && (text[tail] & 0xC0) == 0x80) ++tail;
    return printable(text.substr(0, head), head, keep_lines) + "...(" +
           std::to_string(text.size()) + " bytes)..." +
           printable(text.substr(tail), most, keep_lines);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    const char c = text[0];
    const size_t size = keep_lines && c == '\n' ? 1 : printable_bytes(text);
    result += text.substr(0, size);
    if (size == 0 && c == '\n') result += "\\n";
    if (size == 0 && c != '\n') result += {'\\', 'x', kDigits[c >> 4 & 15], kDigits[c & 15]};
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return result;
}

// A message keeps its line breaks.
inline std::string printable_message(std::string_view text) { return printable(text, 8000, true); }

}  // namespace anymesh
