#pragma once

#include <algorithm>
#include <cstdlib>
#include <cxxopts.hpp>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/util/errors.h"
#include "framework/util/nearest_name.h"
#include "framework/util/plain_words.h"
#include "framework/util/process.h"
#include "framework/util/terminal.h"

namespace anymesh {

// Prints the text of --help and ends the program.
[[noreturn]] inline void end_with(const std::string& program, const std::string& help) {
  std::cout << help;
  std::exit(stdout_is_written(program) ? 0 : 1);
}

// The value of a flag that takes a text.
inline std::shared_ptr<cxxopts::Value> text_value(const char* otherwise = nullptr) {
  auto value = cxxopts::value<std::string>();
  return otherwise ? value->default_value(otherwise) : value;
}

// Throws for the first unknown flag, and suggests the nearest one.
inline void check_flags(const cxxopts::Options& flags, int argc, const char* const* argv) {
  std::vector<std::string> known;
  for (const std::string& group : flags.groups())
    for (const cxxopts::HelpOptionDetails& option : flags.group_help(group).options)
      known.insert(known.end(), option.l.begin(), option.l.end());
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    if (!name.starts_with("--") ||
        std::find(known.begin(), known.end(), name.substr(2)) != known.end())
      continue;
    const std::string nearest = nearest_name(name.substr(2), known);
    throw_error("unknown flag ", name, nearest.empty() ? "" : "; did you mean --" + nearest + "?");
  }
}

// Returns the flags that were given. --help prints all flags and ends the program. A program with
// several groups of flags lists them, because versions of cxxopts order them differently.
inline cxxopts::ParseResult parse_flags(cxxopts::Options& flags, int argc, const char* const* argv,
                                        const std::vector<std::string>& groups = {}) {
  try {
    cxxopts::ParseResult parsed = flags.parse(argc, argv);
    if (parsed.count("help")) end_with(flags.program(), flags.help(groups));
    return parsed;
  } catch (const cxxopts::exceptions::no_such_option&) {
    check_flags(flags, argc, argv);
    throw;
  }
}

// Throws for a word that no flag takes, and for a required flag that is missing.
inline void check_words(const cxxopts::ParseResult& parsed,
                        std::initializer_list<const char*> required) {
  if (!parsed.unmatched().empty()) throw_error("unexpected argument '", parsed.unmatched()[0], "'");
  for (const char* name : required)
    if (!parsed.count(name) || parsed[name].as<std::string>().empty())
      throw_error("--", name, " is missing");
}

// Returns the text of a flag; empty if it was not given and has no default.
inline std::string text_of(const cxxopts::ParseResult& parsed, const char* name) {
  const cxxopts::OptionValue& value = parsed[name];
  return value.count() || value.has_default() ? value.as<std::string>() : "";
}

// Returns a number of threads. Throws unless it is from 1 to 1024.
inline int workers_of(const cxxopts::ParseResult& parsed, const char* name) {
  const int count = parsed[name].as<int>();
  if (count >= 1 && count <= 1024) return count;
  throw_error("--", name, " (", count, ") must be from 1 to 1024");
}

// Begins a tool. It is the program's main() or, in the Python module, the function NAME_main().
#ifdef ANYMESH_PYTHON
#define ANYMESH_MAIN(name) int name##_main
#else
#define ANYMESH_MAIN(name) int main
#endif

// Runs work(parse(argc, argv)) and returns its exit status. Wrong arguments end in 2. Any other
// error, in printing too, ends in `failure`. Both print one line under the tool's name.
template <class Parse, class Work>
int run_tool(const char* name, int failure, int argc, char** argv, Parse parse, Work work) {
  decltype(parse(argc, argv)) arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << coloured(Colour::kRed, name, stderr) << ": " << printable_message(error)
              << " (see --help)\n";
    return 2;
  }
  try {
    set_process_limits();
    const int status = work(arguments);
    return stdout_is_written(name) || status != 0 ? status : failure;
  } catch (const std::exception& error) {
    std::cerr << coloured(Colour::kRed, name, stderr) << ": " << printable_message(error) << '\n';
    return failure;
  }
}

}  // namespace anymesh
