#include "framework/data/json_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/data/tokenizers/characters.h"
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

  // Calls member(key, value), two texts of JSON, for each member of the line's object, in order.
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
  template <class Error = UserError>
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string_view found = text_.substr(std::min(at_, text_.size()), 20);
    throw_error<Error>("column ", at_ + 1, ": expected ", expected, ", found ",
                       found.empty() ? "the end of the line" : printable(found));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_space();
    return true;
  }
  void skip_space() {
    const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

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
      const size_t begin = at_;
      value(depth + 1);
      const std::string_view text = text_.substr(begin, at_ - begin);
      member(key, text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
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
    while (skip_plain(), peek() != '"') {
      if (at_ >= text_.size()) fail("'\"'");
      const CodePoint point = decode_utf8(text_.substr(at_));
      if (!point.valid) fail<NoUtf8>("UTF-8");
      if (point.value < 0x20) fail("no control character in a string");
      at_ += point.bytes;
      if (point.value == '\\') escape();
    }
    const size_t end = at_ + 1;
    skip(1);
    return text_.substr(begin, end - begin);
  }

  void skip_plain() {
    const auto is_plain = [](char c) { return c >= 0x20 && c != '"' && c != '\\'; };  // and ASCII
    while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
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
  if (literal.find('\\') == std::string_view::npos)
    return std::string(literal.substr(1, literal.size() - 2));
  const nlohmann::json text = nlohmann::json::parse(literal, nullptr, /*allow_exceptions=*/false);
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

// Returns the literal with U+FFFD in place of each half of a surrogate pair.
std::string without_halves(std::string literal) {
  const auto unit_at = [&](size_t at) {
    const bool is_code = literal.compare(at, 2, "\\u") == 0;
    return is_code ? std::stoul(literal.substr(at + 2, 4), nullptr, 16) : 0;
  };
  for (size_t at = 0; at < literal.size(); ++at) {
    if (literal[at] != '\\') continue;
    const unsigned long unit = unit_at(at);
    const bool whole = unit >> 10 == 0x36 && unit_at(at + 6) >> 10 == 0x37;
    if (unit >> 11 == 0x1B && !whole) literal.replace(at + 2, 4, "fffd");
    at += whole ? 11 : 1;
  }
  return literal;
}

}  // namespace

std::vector<std::pair<std::string, std::string_view>> members_of(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  JsonLine(object).read([&](std::string_view key, std::string_view value) {
    if (auto name = decoded(key)) members.emplace_back(std::move(*name), value);
  });
  return members;
}

std::vector<std::optional<std::string>> strings_of(std::string_view line,
                                                   const std::vector<std::string>& keys,
                                                   bool* mended) {
  std::string valid;
  if (mended != nullptr && !is_utf8(line)) {
    line = valid = replace_invalid_utf8(line);
    *mended = true;
  }
  std::vector<std::string_view> values(keys.size());
  JsonLine(line).read([&](std::string_view key, std::string_view value) {
    const std::optional<std::string> name = decoded(key);
    for (size_t i = 0; i < keys.size(); ++i)
      if (name == keys[i]) values[i] = value;
  });
  std::vector<std::optional<std::string>> texts(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!values[i].starts_with('"')) continue;
    texts[i] = decoded(values[i]);
    if (texts[i]) continue;
    if (mended == nullptr)
      throw_error<NoUtf8>("the string \"", keys[i],
                          "\" has half a surrogate pair, as \\ud83d alone is, which has no UTF-8");
    texts[i] = decoded(without_halves(std::string(values[i])));
    *mended = true;
  }
  return texts;
}

}  // namespace anymesh
