#pragma once

#include <exception>
#include <string>

namespace anymesh {

// Returns the message of the exception that `call` throws; empty if it throws none.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace anymesh
