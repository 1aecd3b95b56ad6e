#pragma once

#include <string>
#include <vector>

namespace anymesh {

// Returns a word of a command that someone may paste into a shell, quoted if need be.
inline std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Returns the words of a line that shell_word() made, without their quotes.
inline std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  bool inside = false, quoted = false;  // a word, quotes
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == ' ' && !quoted) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == '\'')
      quoted = !quoted;
    else if (c != '\\' || quoted || ++i < line.size())
      words.back() += line[i];
  }
  return words;
}

}  // namespace anymesh
