// Reads a line of a .jsonl by the rules of Python's json.loads, which Megatron uses. NaN, Infinity,
// -Infinity and numbers of any size are values. If a key comes twice, the last one counts.
//
//   strings_of(R"({"text": "a", "score": NaN})", {"text"})    {"a"}
//
// json.loads lets half a surrogate pair pass, but no tokenizer encodes it. It throws in a string
// that was asked for, and nowhere else, or is mended. A byte order mark is skipped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/util/errors.h"

namespace anymesh {

// Text that has no UTF-8, or is none.
struct NoUtf8 : UserError {
  using UserError::UserError;
};

// Returns the string of each key in the line's object; none if it is something else or missing.
// Throws UserError, with a column, if the line is no JSON, and NoUtf8. If `mended` is given, half a
// surrogate pair and each byte that is no UTF-8 become U+FFFD instead, and it is set to true.
std::vector<std::optional<std::string>> strings_of(std::string_view line,
                                                   const std::vector<std::string>& keys,
                                                   bool* mended = nullptr);

// Returns the keys of an object in their order, each with the text of its value. Throws as above.
std::vector<std::pair<std::string, std::string_view>> members_of(std::string_view object);

}  // namespace anymesh
