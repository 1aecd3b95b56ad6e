#pragma once

#include <sstream>
#include <stdexcept>

#include "framework/printable.h"

namespace anymesh {

// Throws std::runtime_error with all parts, one after the other. They may quote a file.
template <class... Parts>
[[noreturn]] void throw_error(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(printable_message(text.str()));
}

}  // namespace anymesh
