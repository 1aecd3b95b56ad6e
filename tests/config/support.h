// Helpers of the tests in this folder: words of a command line, and the message of a refusal.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "framework/config/parse.h"

namespace anymesh {

inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// Returns what() of the UserError that `action` throws; "" if it throws nothing.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace anymesh
