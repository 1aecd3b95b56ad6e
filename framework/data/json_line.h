// A line of a .jsonl by the rules of Python's json.loads, with which Megatron reads it: NaN,
// Infinity, -Infinity and numbers of any size are values, and of a key that comes twice the last
// counts.
//
//   strings_of(R"({"text": "a", "score": NaN})", {"text"})    {"a"}
//
// Half a surrogate pair, which json.loads lets pass and no tokenizer encodes, is refused in what is
// asked for, and nowhere else. A byte order mark is skipped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// The string of each key of the object that the line is; none where that is something else or is
// missing. Throws std::runtime_error, with a column, if the line is no JSON.
std::vector<std::optional<std::string>> strings_of(std::string_view line,
                                                   const std::vector<std::string>& keys);

}  // namespace anymesh
