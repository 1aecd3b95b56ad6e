// Reads a line of a .jsonl by the rules of Python's json.loads, which Megatron uses. NaN, Infinity,
// -Infinity and numbers of any size are values. If a key comes twice, the last one counts.
//
//   strings_of(R"({"text": "a", "score": NaN})", {"text"})    {"a"}
//
// json.loads lets half a surrogate pair pass, but no tokenizer encodes it. It throws in a string
// that was asked for, and nowhere else. A byte order mark is skipped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// Returns the string of each key in the line's object; none if it is something else or missing.
// Throws std::runtime_error, with a column, if the line is no JSON.
std::vector<std::optional<std::string>> strings_of(std::string_view line,
                                                   const std::vector<std::string>& keys);

}  // namespace anymesh
