#pragma once

#include <string>

#include "framework/format/torch_file.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Converts a model to and from a checkpoint's `args`, and to flags, by the flag table and without a
// run.

// Returns the `args` that a run of this model writes.
Value args_of_gpt(const GptConfig& gpt);

// Reads the `args` of a checkpoint of ours or of Megatron-DeepSpeed. Throws a DamagedFile that
// names a missing attribute, or a value that our model cannot have.
GptConfig gpt_of_args(const Value& args);

// Returns the flags that are not at their defaults: "--num-layers 2 --swiglu ...".
std::string flags_of_gpt(const GptConfig& gpt);

}  // namespace anymesh
