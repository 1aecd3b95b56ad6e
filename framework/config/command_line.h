// argv into a FlagTable. `--flag value` and `--flag=value` are the same, switches take no value,
// lists take all values up to the next flag:
//
//   --lr 1e-3 --num-layers=4 --bf16 --data-path 0.7 books_text_document 0.3 web_text_document
//
// Of a flag that is given again the last value counts, so that a script can append "$@".
// Refuses unknown flags, with a suggestion, and Megatron's flags that foreign_flags.cpp refuses.
#pragma once

#include <string>
#include <vector>

#include "framework/config/flags.h"

namespace anymesh {

// Sets the fields; returns the flags of Megatron that were given and ignored.
std::vector<std::string> read_command_line(FlagTable& flags, const std::vector<std::string>& args);

// What --help or --version is to print: all flags by group, each with its default, and the names of
// the ignored ones; or the version. Empty if neither is among the arguments.
std::string text_asked_for(const FlagTable& flags, const std::vector<std::string>& args);

}  // namespace anymesh
