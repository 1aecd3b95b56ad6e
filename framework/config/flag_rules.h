#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

// Fills in the values that follow from which flags were given, such as the tokenizer's type. Throws
// UserError for a value that is not among a flag's choices, and for a flag that would change nothing
// beside the others, since that is a misunderstanding. Rules about the values themselves, and about
// the mesh, are in validate(). Adds remarks for the user to `notes`.
void apply_flag_rules(const FlagTable& flags, Config& config, std::vector<std::string>& notes);

}  // namespace anymesh
