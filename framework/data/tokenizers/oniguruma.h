#pragma once

#include <string>
#include <string_view>

namespace anymesh {

// Translates a regular expression of a tokenizer.json, whose language is Oniguruma's, into PCRE2's.
// The two differ in \s, \w, \v and \b, in \p{Han} (the script, without its extensions), in \uHHHH
// and {,n}. Throws a UserError for syntax that means something else there and has no counterpart:
// classes inside classes, {n,m}+, options other than i, \h, \K and the like.
std::string pcre2_from_oniguruma(std::string_view pattern);

}  // namespace anymesh
