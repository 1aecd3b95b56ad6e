#pragma once

#include <string>

#include "models/gpt/gpt_config.h"
#include "tools/hf/args.h"

namespace anymesh {

// A GPT as its flags and as the `args` of its checkpoints.

// The model_type of an imported model, which an export keeps if it can.
inline constexpr const char* kModelType = "model_type";

// Returns the GPT's flags with its values.
std::vector<Setting> settings_of(const GptConfig& gpt);

// Returns the `args` that a run of this model writes.
Value args_of_gpt(const GptConfig& gpt);

// Reads the `args` of a checkpoint of ours or of Megatron-DeepSpeed. Throws a DamagedFile that
// names a missing attribute, or a value that our model cannot have.
GptConfig gpt_of_args(const Value& args);

// Returns the flags that are not at their defaults: "--num-layers 2 --swiglu ...".
std::string flags_of_gpt(const GptConfig& gpt);

}  // namespace anymesh
