#pragma once

#include <cxxopts.hpp>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/inputs/document_reader.h"

namespace anymesh {

// Rewrites Megatron's spelling of a list, "--input a b" and "--json-keys a b", to cxxopts':
// "--input a --input b".
std::vector<std::string> repeat_flags(const std::vector<std::string>& args);

// Takes flags of Megatron's tools/preprocess_data.py that this program does not have. Appends those
// that change nothing here to `ignored`, and throws UserError, with the reason, for others.
std::vector<std::string> without_foreign_flags(const std::vector<std::string>& args,
                                               std::vector<std::string>& ignored);
// Returns the part of --help about them.
std::string foreign_flags_help();

// Returns the inputs of --input, with patterns expanded. Commas separate them too, unless a file
// has the comma in its name.
std::vector<std::string> inputs_of(const cxxopts::ParseResult& parsed);

// Returns the unit of --documents that the inputs are cut into; none for JSON lines. Their names
// tell which they are. A pipe has no name, so it is text if --documents is given. Throws UserError
// if they are not all of one kind, or for a flag that the kind does not take.
std::optional<DocumentUnit> unit_of(const cxxopts::ParseResult& parsed,
                                    const std::vector<std::string>& inputs);

}  // namespace anymesh
