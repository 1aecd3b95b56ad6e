#pragma once

#include <cxxopts.hpp>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <string>

#include "framework/descriptors.h"
#include "framework/printable.h"

namespace anymesh {

// The flags that were given; --help prints all there are, and ends the program.
inline cxxopts::ParseResult parse_flags(cxxopts::Options& flags, int argc,
                                        const char* const* argv) {
  cxxopts::ParseResult parsed = flags.parse(argc, argv);
  if (parsed.count("help")) {
    std::cout << flags.help();
    std::exit(0);
  }
  return parsed;
}

// Refuses words that no flag takes, and the lack of one that is required.
inline void check_words(const cxxopts::ParseResult& parsed,
                        std::initializer_list<const char*> required) {
  if (!parsed.unmatched().empty())
    throw std::invalid_argument("unexpected argument '" + parsed.unmatched()[0] + "'");
  for (const char* name : required)
    if (!parsed.count(name) || parsed[name].as<std::string>().empty())
      throw std::invalid_argument("--" + std::string(name) + " is missing");
}

// The text of a flag; empty if it was not given and has no default.
inline std::string text_of(const cxxopts::ParseResult& parsed, const char* name) {
  const cxxopts::OptionValue& value = parsed[name];
  return value.count() || value.has_default() ? value.as<std::string>() : "";
}

// A number of threads.
inline int workers_of(const cxxopts::ParseResult& parsed, const char* name) {
  const int count = parsed[name].as<int>();
  if (count >= 1 && count <= 1024) return count;
  throw std::invalid_argument("--" + std::string(name) + " (" + std::to_string(count) +
                              ") must be from 1 to 1024");
}

// The life of a tool: work(parse(argc, argv)), whose exit status it returns. Wrong arguments
// end in 2, any other error in `failure`; both are one line, under the tool's name.
template <class Parse, class Work>
int run_tool(const char* name, int failure, int argc, char** argv, Parse parse, Work work) {
  decltype(parse(argc, argv)) arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << printable_message(error) << " (see --help)\n";
    return 2;
  }
  try {
    take_all_descriptors();
    return work(arguments);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << printable_message(error) << '\n';
    return failure;
  }
}

}  // namespace anymesh
