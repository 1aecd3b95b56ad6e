#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "framework/util/printable.h"

namespace anymesh {

// Errors by their consequence. Messages may quote a file: control characters are escaped. Any other
// std::runtime_error comes from the system, say a disk that is full, and ends the work too.

// The user must change something: a flag, a path, a file of another kind, the run's model.
struct UserError : std::runtime_error {
  explicit UserError(const std::string& text) : std::runtime_error(printable_message(text)) {}
};

// A file is missing, cut off, or holds bytes that its format does not allow. This alone makes a
// load fall back to an older checkpoint.
struct DamagedFile : std::runtime_error {
  explicit DamagedFile(const std::string& text) : std::runtime_error(printable_message(text)) {}
};

// A file may be intact, but cannot be read now: for lack of a permission, of descriptors or of
// memory, because its format is newer, or because this program does not support its contents.
struct Unreadable : std::runtime_error {
  explicit Unreadable(const std::string& text) : std::runtime_error(printable_message(text)) {}
};

// Throws an error with all parts, one after the other.
template <class Error = UserError, class... Parts>
[[noreturn]] void throw_error(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

}  // namespace anymesh
