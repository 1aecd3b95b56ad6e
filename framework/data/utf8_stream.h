#pragma once

#include <string>
#include <string_view>

#include "framework/util/utf8.h"

namespace anymesh {

// Joins characters that come in pieces, as a model's tokens have them:
//
//   Utf8Stream stream;
//   std::cout << stream.take("caf\xc3") << stream.take("\xa9") << stream.finish();  // caf, é
//
// Only whole characters come out. A byte that is part of none comes out as U+FFFD.
class Utf8Stream {
 public:
  std::string take(std::string_view bytes) {
    pending_ += bytes;
    std::string text;
    std::string_view rest = pending_;
    while (!rest.empty()) {
      const CodePoint c = decode_utf8(rest);
      if (!c.valid && is_beginning(rest)) break;
      text += c.valid ? rest.substr(0, c.bytes) : "\ufffd";
      rest.remove_prefix(c.bytes);
    }
    pending_ = std::string(rest);
    return text;
  }

  // No byte that is left can become whole.
  std::string finish() {
    std::string text;
    for (; !pending_.empty(); pending_.erase(0, 1)) text += "\ufffd";
    return text;
  }

 private:
  // Returns whether more bytes could make the text one character. Tries the least and the greatest
  // continuation byte, since the bytes that are allowed to follow always include one of them.
  static bool is_beginning(std::string_view text) {
    if (text.size() > 3) return false;
    for (const char byte : {'\x80', '\xbf'})
      if (decode_utf8(std::string(text) + std::string(3, byte)).bytes > text.size()) return true;
    return false;
  }

  std::string pending_;  // the beginning of a character
};

}  // namespace anymesh
