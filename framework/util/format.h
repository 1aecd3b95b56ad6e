#pragma once

#include <cstdarg>
#include <cstdint>
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

// "[0,1,1]"
inline std::string list_text(const std::vector<int64_t>& integers) {
  std::vector<std::string> items;
  for (const int64_t integer : integers) items.push_back(std::to_string(integer));
  std::string text = "[";
  text += joined(items, ",");
  return text += ']';
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

// Returns "812 B", "21.30 KB", "497.76 MB" or "1.49 GB".
inline std::string size_text(double bytes) {
  if (bytes < 999.5) return string_printf("%.0f B", bytes);
  size_t unit = 0;
  for (bytes /= 1e3; bytes >= 999.995 && unit < 3; bytes /= 1e3) ++unit;
  return string_printf("%.2f %cB", bytes, "KMGT"[unit]);
}

// Returns "45 s", "12 min", "3.4 h" or "2.5 days".
inline std::string duration_text(double seconds) {
  if (seconds < 99.5) return string_printf("%.0f s", seconds);
  const double hours = seconds / 3600;
  if (hours < 1.65) return string_printf("%.0f min", seconds / 60);
  return hours < 48 ? string_printf("%.1f h", hours) : string_printf("%.1f days", hours / 24);
}

}  // namespace anymesh
