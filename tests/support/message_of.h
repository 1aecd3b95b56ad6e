// Messages of errors, and the matchers of texts and lists that most tests use.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace anymesh {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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

// Matches a text that has all these parts.
template <class... Part>
auto HasSubstrs(const Part&... parts) {
  return AllOf(HasSubstr(parts)...);
}

// Expects that the statement throws, with these parts in its message.
#define EXPECT_REFUSES(statement, ...) \
  EXPECT_THAT(message_of([&] { statement; }), HasSubstrs(__VA_ARGS__))

}  // namespace anymesh
