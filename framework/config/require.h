// Helpers that phrase rules between flags, for this folder and for models:
//
//   require(h % n == 0, with("--hidden-size", h), " must be divisible by ", with("--...", n));
//
// throws "--hidden-size (8) must be divisible by --num-attention-heads (3)".
#pragma once

#include <sstream>
#include <string>

#include "framework/config/config.h"
#include "framework/util/errors.h"

namespace anymesh {

template <class T>
std::string with(const char* flag, const T& value) {
  std::ostringstream text;
  text << flag << " (" << value << ")";
  return text.str();
}

template <class... Parts>
void require(bool holds, const Parts&... message) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << message);
  throw UserError(text.str());
}

}  // namespace anymesh
