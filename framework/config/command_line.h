// Reads argv into a FlagTable. `--flag value` and `--flag=value` are the same, switches take no
// value, and lists take all values up to the next flag:
//
//   --lr 1e-3 --num-layers=4 --bf16 --data-path 0.7 books_text_document 0.3 web_text_document
//
// If a flag is repeated, the last value counts, so that a script can append "$@".
// Refuses unknown flags, with a suggestion, and the Megatron flags that foreign_flags.cpp refuses.
#pragma once

#include <string>
#include <vector>

#include "framework/config/flags.h"

namespace anymesh {

// Sets the fields. Returns the Megatron flags that were given and ignored.
std::vector<std::string> read_command_line(FlagTable& flags, const std::vector<std::string>& args);

// Returns the text that --help or --version prints. The help lists all flags by group, each with
// its default, and the names of the ignored flags. Returns an empty string if neither is given.
std::string text_asked_for(const FlagTable& flags, const std::vector<std::string>& args);

}  // namespace anymesh
