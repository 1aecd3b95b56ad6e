#pragma once

#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"
#include "tools/generate/setup.h"

namespace anymesh {

struct GptFlags : GenerateFlags {
  GptConfig gpt;  // for a checkpoint without args
};

// Parses the flags, or prints --help and exits. Throws UserError.
GptFlags parse_gpt_flags(const std::vector<std::string>& args);

struct GptSetup : TextSetup {
  GptConfig gpt;  // its seq_length has room for the longest text, or for the window
};

// Reads the model from the checkpoint's args, or from the flags if it has none (weights,
// DeepSpeed's own). Throws UserError or DamagedFile if the checkpoint is of another model, or if the
// window is longer than the table of learned positions.
GptSetup set_up_gpt(const GptFlags& flags);

}  // namespace anymesh
