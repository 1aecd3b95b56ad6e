#pragma once

#include <sstream>
#include <stdexcept>

#include "framework/printable.h"

namespace anymesh {

// std::runtime_error whose text is all parts, one after the other; they may quote a file.
template <class... Parts>
[[noreturn]] void throw_error(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(printable_message(text.str()));
}

}  // namespace anymesh
