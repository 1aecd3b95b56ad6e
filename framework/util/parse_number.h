#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace anymesh {

// Parses all of `text` as a number, like std::from_chars: no white space, no '+'.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace anymesh
