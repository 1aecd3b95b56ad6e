#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace anymesh {

// For the JSON of a file that anyone may have written: blanks what is nested deeper than anything in
// a checkpoint's JSON is. The library writes a value by recursion, into messages too, holds each
// bracket in some 64 bytes, and with a callback in its parser takes time by the square of the keys.
//
//   nlohmann::json::parse(shallow(text))
inline std::string shallow(std::string text) {
  constexpr int kDeepest = 8;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth > kDeepest) text[i] = ' ';
    if (quoted) {
      if (c == '\\' && i + 1 < text.size() && depth > kDeepest) text[i + 1] = ' ';
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (depth-- == kDeepest + 1) text[i] = c;
    } else {
      quoted = c == '"';
    }
  }
  return text;
}

}  // namespace anymesh
