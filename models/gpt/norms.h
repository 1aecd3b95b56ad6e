#pragma once

#include <string>

#include "framework/kernels/norm.h"
#include "framework/param_spec.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Makes the parameters of a LayerNorm of the hidden state, or of one without mean and bias with
// --normalization rmsnorm. They are whole on every tp rank.
NormParams make_norm(ParamBuilder& params, const std::string& name, const GptConfig& config);

// Makes those of a norm of each head, [d], with --qk-layernorm; otherwise leaves them undefined.
// They are whole too, but a tp rank has the gradient of its own heads.
NormParams make_head_norm(ParamBuilder& params, const std::string& name, const GptConfig& config);

}  // namespace anymesh
