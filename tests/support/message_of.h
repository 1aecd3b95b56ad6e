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

// Expects that the statement throws, with this part in its message. Needs gmock.
#define EXPECT_REFUSES(statement, part) \
  EXPECT_THAT(message_of([&] { statement; }), ::testing::HasSubstr(part))

}  // namespace anymesh
