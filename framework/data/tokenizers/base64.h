#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace anymesh {

// Returns the bytes of a base64 text with its padding; none if it is not one.
inline std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return {};
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t value = kDigits.find(text[i]);
    if (value == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 > 0) bytes += static_cast<char>(bits >> (6 - 2 * (i % 4)) & 0xFF);
  }
  return bytes;
}

}  // namespace anymesh
