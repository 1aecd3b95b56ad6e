// Helpers that phrase validation rules, for this folder and for models:
//
//   require(h % n == 0, with("--hidden-size", h) + " must be divisible by " + with("--...", n));
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

inline void require(bool holds, const std::string& message) {
  if (!holds) throw UserError(message);
}

// "--save-interval (-1) must not be negative", or "--log-interval (0) must be at least 1".
template <class T>
void require_at_least(int least, const char* flag, T value) {
  require(value >= least,
          with(flag, value) + (least == 0 ? " must not be negative"
                                          : " must be at least " + std::to_string(least)));
}

}  // namespace anymesh
