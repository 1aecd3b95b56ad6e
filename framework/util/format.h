#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace anymesh {

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
