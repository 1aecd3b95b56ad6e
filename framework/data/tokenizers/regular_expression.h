#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// A part of a text: what a pattern matched, or what lies between two matches.
struct Span {
  size_t begin, end;
  bool is_match;
};

// A regular expression of PCRE2 over UTF-8, compiled to machine code where PCRE2 can. Its classes
// are Unicode's, and ^ and $ match at lines. One object serves one thread.
class RegularExpression {
 public:
  // Throws a UserError for a pattern that PCRE2 does not take, or of more than 64 KiB.
  explicit RegularExpression(const std::string& pattern);
  ~RegularExpression();
  RegularExpression(RegularExpression&&) noexcept;

  static bool is_valid(const std::string& pattern);

  // Appends spans that cover a valid UTF-8 text. Throws a UserError where a search takes more than
  // some 10 million steps and 64 for each byte, as patterns like (a*)*b do.
  void find_all(std::string_view text, std::vector<Span>& spans) const;

 private:
  struct Compiled;
  bool find(std::string_view text, size_t from, Span& match) const;

  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace anymesh
