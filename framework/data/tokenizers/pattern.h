#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// A part of a text: what a pattern matched, or what lies between two matches.
struct Span {
  size_t begin, end;
  bool is_match;
};

// Appends spans that cover a valid UTF-8 text. One object serves one thread.
using FindSpans = std::function<void(std::string_view text, std::vector<Span>& spans)>;

// Returns the search for a regular expression of PCRE2, compiled to machine code where PCRE2 can.
// Its classes are Unicode's, and ^ and $ match at lines. Throws a UserError for a pattern that
// PCRE2 does not take, or of more than 64 KiB. The search throws one where it takes more than some
// 10 million steps and 64 for each byte, as patterns like (a*)*b do.
FindSpans find_expression(const std::string& pattern);
bool is_expression(const std::string& pattern);

// Translates a regular expression of a tokenizer.json, whose language is Oniguruma's, into PCRE2's.
// The two differ in \s, \w, \v and \b, in \p{Han} (the script, without its extensions), in \uHHHH
// and {,n}. Throws a UserError for syntax that means something else there and has no counterpart:
// classes inside classes, {n,m}+, options other than i, \h, \K and the like.
std::string pcre2_from_oniguruma(std::string_view pattern);

// Returns the search for a {"String": "..."} or {"Regex": "..."} of tokenizer.json.
FindSpans read_pattern(const JsonNode& node);

// Replaces what a span matches by `content`. Throws a UserError if check_growth() does.
std::string replaced(std::string_view text, const std::vector<Span>& spans,
                     std::string_view content);

// Throws a UserError if a text becomes far longer than it was, as by rules that double it one after
// the other. Unicode's own forms make at most 18 bytes of one.
void check_growth(size_t bytes, size_t becomes);

}  // namespace anymesh
