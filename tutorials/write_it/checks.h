// A check calls one function for many inputs and prints what it returns. write_it.py runs it with the library's function and with a
// reader's, and compares the lines.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace write_it {

// An answer is a line: the input, a name for the values, and the values, with tabs between them. The input goes out before the call,
// so that it is known if the call does not return. Without a name there is one value.
//
//   answer("stage 0 of 2, 2 micro-batches", "steps", [&] { return words; });
template <class Call>
void answer(const std::string& input, const std::string& name, const Call& call) {
  std::printf("%s\t%s", input.c_str(), name.c_str());
  std::fflush(stdout);
  try {
    for (const std::string& value : call()) std::printf("\t%s", value.c_str());
  } catch (const std::exception& error) {
    std::printf("\t! %s", error.what());
  }
  std::printf("\n");
}

// Returns a number with all its digits.
inline std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

template <class Numbers>
std::vector<std::string> words(const Numbers& numbers) {
  std::vector<std::string> all;
  for (const auto& number : numbers) all.push_back(std::to_string(number));
  return all;
}

// Returns "1, 2, 3".
template <class Numbers>
std::string list(const Numbers& numbers) {
  std::string text;
  for (const auto& number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

void one_f_one_b();
void fragments();
void coord_of();
void philox();
void all_reduce();
void column_backward();
void zero1();
void merge();
void causal_mask();
void loss_scaler();

}  // namespace write_it
