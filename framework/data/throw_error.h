#pragma once

#include <sstream>
#include <stdexcept>

namespace anymesh {

// std::runtime_error whose text is all parts, one after the other.
template <class... Parts>
[[noreturn]] void throw_error(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

}  // namespace anymesh
