#pragma once

#include <string>

#include "framework/checkpoint/format/value.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// The model in a checkpoint's `args`, and as flags: the flag table both ways, without a run.

// Its attributes, as a run of this model writes them.
Value args_of_gpt(const GptConfig& gpt);

// Reads them back, from a checkpoint of ours or of Megatron-DeepSpeed. Throws a ValueError that
// names an attribute which is missing, or says what our model cannot be.
GptConfig gpt_of_args(const Value& args);

// "--num-layers 2 --swiglu ...": what is not the default.
std::string flags_of_gpt(const GptConfig& gpt);

}  // namespace anymesh
