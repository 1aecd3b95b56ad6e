#include <algorithm>
#include <cctype>

#include "framework/data/tokenizers/pattern.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

// Unicode's White_Space, and the rest, inside a class.
constexpr const char* kSpace =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class OnigurumaReader {
 public:
  explicit OnigurumaReader(std::string_view pattern) : pattern_(pattern) {}

  std::string pcre2() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        inside_class(c);
      else if (c == '[')
        open_class();
      else if (c == '(')
        group();
      else if (c == '{')
        repeat();
      else
        copy(1);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw_error("the regular expression ", printable(pattern_), " has ", what, " at byte ", at_,
                ", which is not supported");
  }
  char peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void copy(size_t size) {
    out_ += pattern_.substr(at_, size);
    at_ = std::min(at_ + size, pattern_.size());
  }
  void replace(size_t size, const std::string& by) {
    out_ += by;
    at_ += size;
  }
  // A set of characters, as a class of its own or inside one.
  void set(size_t size, const std::string& members, bool negated = false) {
    replace(size, in_class_ ? members : (negated ? "[^" : "[") + members + "]");
  }

  void open_class() {
    in_class_ = true;
    copy(peek(1) == '^' ? 2 : 1);
    if (peek(0) == ']') replace(1, "\\]");
  }

  void inside_class(char c) {
    if (c == '[') refuse("a class inside a class");
    if (c == '&' && peek(1) == '&') refuse("an intersection of classes");
    in_class_ = c != ']';
    copy(1);
  }

  void group() {
    if (peek(1) != '?') return copy(1);
    const char kind = peek(2), next = peek(3);
    const bool look_behind = kind == '<' && (next == '=' || next == '!');
    if (kind == ':' || kind == '=' || kind == '!' || kind == '>' || look_behind) return copy(3);
    if (pattern_.substr(at_).starts_with("(?i:")) return copy(4);
    if (pattern_.substr(at_).starts_with("(?i)") && at_ == 0) return copy(4);
    if (kind == '<' && std::isalpha(static_cast<unsigned char>(next))) return copy(3);
    refuse("the group (?" + std::string(1, kind));
  }

  void repeat() {
    const size_t end = pattern_.find('}', at_);
    const std::string_view inside =
        end == std::string_view::npos ? "" : pattern_.substr(at_ + 1, end - at_ - 1);
    const auto is_part = [](unsigned char c) { return std::isdigit(c) || c == ','; };
    if (inside.empty() || !std::ranges::all_of(inside, is_part)) return replace(1, "\\{");
    const char behind = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (behind == '+') refuse("a {n,m}+");
    if (behind == '?' && inside.find(',') == std::string_view::npos) refuse("a {n}?");
    replace(inside.size() + 2, (inside[0] == ',' ? "{0" : "{") + std::string(inside) + "}");
  }

  void escape() {
    const char c = peek(1);
    const std::string word = std::string("[") + kWord + "]";
    if (c == 's') return set(2, kSpace);
    if (c == 'S') return set(2, in_class_ ? kNoSpace : kSpace, /*negated=*/true);
    if (c == 'w') return set(2, kWord);
    if (c == 'W' && !in_class_) return set(2, kWord, /*negated=*/true);
    if (c == 'b' && !in_class_)
      return replace(2, "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))");
    if (c == 'v') return replace(2, "\\x0b");
    if (c == 'p' || c == 'P') return property();
    if (c == 'u') return unicode();
    if (c == 'x') return hexadecimal();
    if (std::isalnum(static_cast<unsigned char>(c)) &&
        std::string_view("dDtnrfaeAzZ").find(c) == std::string_view::npos)
      refuse(std::string("\\") + c);
    if (c == '\0') refuse("a \\ without a character");
    copy(2);
  }

  // \p{Han} is the script. The names of general categories and binary properties are PCRE2's too.
  void property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("a property without {}");
    std::string name(pattern_.substr(at_ + 3, end - at_ - 3));
    const std::string begin = "\\" + std::string(1, peek(1)) + "{" + (name[0] == '^' ? "^" : "");
    if (name[0] == '^') name.erase(0, 1);
    const bool script =
        name.size() > 2 &&
        std::ranges::all_of(
            name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == ' '; }) &&
        is_expression("\\p{sc:" + name + "}");
    replace(end + 1 - at_, begin + (script ? "sc:" : "") + name + "}");
  }

  void unicode() {
    const std::string digits(pattern_.substr(std::min(at_ + 2, pattern_.size()), 4));
    if (!is_hexadecimal(digits, 4)) refuse("a \\u without four digits");
    replace(6, "\\x{" + digits + "}");
  }

  void hexadecimal() {
    if (peek(2) == '{') return copy(3);
    const std::string digits(pattern_.substr(std::min(at_ + 2, pattern_.size()), 2));
    if (!is_hexadecimal(digits, 2) || digits[0] > '7') refuse("a byte \\x");
    replace(4, "\\x{" + digits + "}");
  }

  static bool is_hexadecimal(std::string_view digits, size_t size) {
    return digits.size() == size &&
           std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c); });
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) {
  return OnigurumaReader(pattern).pcre2();
}

}  // namespace anymesh
