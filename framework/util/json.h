#pragma once

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {

// Blanks everything nested deeper than a checkpoint's JSON ever is, for files that anyone may have
// written. The JSON library writes values recursively, into messages too, and holds each bracket in
// some 64 bytes. With a parser callback it takes time quadratic in the number of keys.
//
//   nlohmann::json::parse(shallow(text))
inline std::string shallow(std::string text) {
  // The library's destructors allocate and so end the program if memory is short: throw here first.
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

// Returns an object's member; null if there is none, or if it is no object.
inline nlohmann::json member(const nlohmann::json& object, const std::string& key) {
  return object.is_object() && object.contains(key) ? object[key] : nlohmann::json();
}

// Returns the text to be written to `path`. Throws, with path and name, for strings that are not
// UTF-8: the library's message names neither.
template <class Json>
std::string json_text(const Json& json, const std::filesystem::path& path, int indent = -1) {
  try {
    return json.dump(indent);
  } catch (const nlohmann::json::type_error&) {
    for (const auto& [name, value] : json.items()) {
      const std::string replaced =
          nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
      if (replaced.size() < name.size() + 2)
        throw UserError(path.string() + ": JSON takes UTF-8 alone, which the name '" +
                        printable(name) + "' is not");
    }
    throw UserError(path.string() + ": JSON takes UTF-8 alone, which a text for it is not");
  }
}

}  // namespace anymesh
