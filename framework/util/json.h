#pragma once

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {

// The deepest that the JSON of a file may nest. The library writes values recursively, into
// messages too, and holds each bracket in some 64 bytes. A parser callback would take time
// quadratic in the number of keys.
constexpr int kDeepestJson = 128;

// Returns the text of a file that anyone may have written. Throws DamagedFile if it nests deeper.
//
//   nlohmann::json::parse(bounded(read_file(path), path))
inline std::string bounded(std::string text, const std::filesystem::path& file) {
  // The library's destructors allocate and so end the program if memory is short: throw here first.
  constexpr size_t kBytesPerByte = 16;
  ::operator delete(::operator new(kBytesPerByte* text.size()));
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestJson)
        throw_error<DamagedFile>(file.string(), ": is JSON that nests deeper than ", kDeepestJson,
                                 " levels");
    } else {
      depth -= c == ']' || c == '}';
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
