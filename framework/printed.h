#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace anymesh {

// What printf would print, up to 511 bytes:
//
//   printed("%.2f GB/s", bytes / seconds / 1e9)
[[gnu::format(printf, 1, 2)]] inline std::string printed(const char* format, ...) {
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

// A word of a command that someone may paste into a shell, quoted if need be.
inline std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace anymesh
