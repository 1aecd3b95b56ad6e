#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// "a, b, c"
inline std::string joined(const std::vector<std::string>& items, std::string_view between = ", ") {
  std::string text;
  for (const std::string& item : items) (text += text.empty() ? "" : between) += item;
  return text;
}

// Returns the parts between separators: split("a,,b", ',') is {"a", "", "b"}, split("", ',') is {}.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// Returns the text that printf would print, up to 511 bytes:
//
//   string_printf("%.2f GB/s", bytes / seconds / 1e9)
[[gnu::format(printf, 1, 2)]] inline std::string string_printf(const char* format, ...) {
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

}  // namespace anymesh
