#include "framework/data/json_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr int kDeepest = 1000;  // as Python's recursion limit

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?
bool is_number(std::string_view text) {
  // Takes as many of these characters as there are in front, but at most `most`.
  const auto take = [&text](std::string_view any, size_t most) {
    const size_t count = std::min({text.find_first_not_of(any), text.size(), most});
    text.remove_prefix(count);
    return count > 0;
  };
  const auto digits = [&] { return take("0123456789", text.size()); };
  take("-", 1);
  if (!take("0", 1) && !digits()) return false;
  if (take(".", 1) && !digits()) return false;
  const bool exponent = take("eE", 1);
  if (exponent) take("+-", 1);
  return (!exponent || digits()) && text.empty();
}

class JsonLine {
 public:
  explicit JsonLine(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    skip_space();
  }

  // Calls member(key, literal) for each member of the line's object, in order. The literal is empty
  // if the value is no string.
  template <class Member>
  void read(const Member& member) {
    if (peek() == '{') {
      object(0, member);
    } else {
      value(0);
    }
    if (at_ < text_.size()) fail("the end of the line");
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string_view found = text_.substr(std::min(at_, text_.size()), 20);
    throw_error("column ", at_ + 1, ": expected ", expected, ", found ",
                found.empty() ? "the end of the line" : printable(found));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_space();
    return true;
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  void value(int depth) {
    if (depth > kDeepest) fail("at most 1000 levels");
    if (peek() == '"') {
      literal();
    } else if (peek() == '{') {
      object(depth, [](std::string_view, std::string_view) {});
    } else if (peek() == '[') {
      list(']', [&] { value(depth + 1); });
    } else {
      scalar();
    }
  }

  template <class Member>
  void object(int depth, const Member& member) {
    list('}', [&] {
      if (peek() != '"') fail("a key");
      const std::string_view key = literal();
      if (!take(':')) fail("':'");
      const bool is_string = peek() == '"';
      const size_t begin = at_;
      value(depth + 1);
      member(key, is_string ? text_.substr(begin, at_ - begin) : std::string_view());
    });
  }

  template <class Item>
  void list(char close, const Item& item) {
    take(text_[at_]);
    if (take(close)) return;
    do {
      item();
    } while (take(','));
    if (!take(close)) fail(std::string("',' or '") + close + "'");
  }

  void scalar() {
    size_t end = at_;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) || is_one_of("+-.", text_[end])))
      ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    for (const char* constant : {"true", "false", "null", "NaN", "Infinity", "-Infinity"})
      if (word == constant) return skip(word.size());
    if (!is_number(word)) fail("a value");
    skip(word.size());
  }

  // Skips a string literal and returns it, with its quotes.
  std::string_view literal() {
    const size_t begin = at_++;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("'\"'");
      const CodePoint point = decode_utf8(text_.substr(at_));
      if (!point.valid) fail("UTF-8");
      if (point.value < 0x20) fail("no control character in a string");
      at_ += point.bytes;
      if (point.value == '\\') escape();
    }
    const size_t end = at_ + 1;
    skip(1);
    return text_.substr(begin, end - begin);
  }

  void escape() {
    if (!is_one_of("\"\\/bfnrtu", peek())) fail("an escape of JSON");
    const bool is_code = peek() == 'u';
    ++at_;
    for (int i = 0; is_code && i < 4; ++i, ++at_)
      if (!std::isxdigit(static_cast<unsigned char>(peek()))) fail("a hexadecimal digit");
  }

  static bool is_one_of(std::string_view set, char c) {
    return c != '\0' && set.find(c) != std::string_view::npos;
  }
  void skip(size_t bytes) {
    at_ += bytes;
    skip_space();
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Returns the text without quotes and escapes; none for half a surrogate pair.
std::optional<std::string> decoded(std::string_view literal) {
  const nlohmann::json text = nlohmann::json::parse(literal, nullptr, /*allow_exceptions=*/false);
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

}  // namespace

std::vector<std::optional<std::string>> strings_of(std::string_view line,
                                                   const std::vector<std::string>& keys) {
  std::vector<std::optional<std::string_view>> literals(keys.size());
  JsonLine(line).read([&](std::string_view key, std::string_view literal) {
    const std::optional<std::string> name = decoded(key);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (name != keys[i]) continue;
      literals[i] = literal.empty() ? std::nullopt : std::optional(literal);
    }
  });
  std::vector<std::optional<std::string>> texts(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!literals[i]) continue;
    texts[i] = decoded(*literals[i]);
    if (!texts[i])
      throw_error("the string \"", keys[i],
                  "\" has half a surrogate pair, as \\ud83d alone is, which has no UTF-8");
  }
  return texts;
}

}  // namespace anymesh
