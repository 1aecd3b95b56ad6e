#pragma once

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/checkpoint/format/dtype.h"  // ValueError
#include "framework/printable.h"

namespace anymesh {

// For the JSON of a file that anyone may have written: blanks what is nested deeper than anything in
// a checkpoint's JSON is. The library writes a value by recursion, into messages too, holds each
// bracket in some 64 bytes, and with a callback in its parser takes time by the square of the keys.
//
//   nlohmann::json::parse(shallow(text))
inline std::string shallow(std::string text) {
  // Its destructors allocate, and so end the program where memory is short: throws here instead.
  constexpr size_t kBytesPerByte = 16;
  ::operator delete(::operator new(kBytesPerByte* text.size()));
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

// As it is written to `path`. The library's message of what no JSON can hold names neither.
template <class Json>
std::string json_text(const Json& json, const std::filesystem::path& path, int indent = -1) {
  try {
    return json.dump(indent);
  } catch (const nlohmann::json::type_error&) {
    for (const auto& [name, value] : json.items()) {
      const std::string replaced =
          nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
      if (replaced.size() < name.size() + 2)
        throw ValueError(path.string() + ": JSON takes UTF-8 alone, which the name '" +
                         printable(name) + "' is not");
    }
    throw ValueError(path.string() + ": JSON takes UTF-8 alone, which a text for it is not");
  }
}

}  // namespace anymesh
