#include "models/gpt/norm.h"

#include <ATen/Functions.h>

namespace anymesh {

Norm::Norm(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : weight_(params.add(
          {.name = name + ".weight", .shape = {config.hidden_size}, .weight_decay = false},
          Init::constant(1))),
      epsilon_(config.layernorm_epsilon) {
  if (config.normalization == "rmsnorm") return;
  bias_ = params.add({.name = name + ".bias", .shape = {config.hidden_size}, .weight_decay = false},
                     Init::constant(0));
}

torch::Tensor Norm::forward(const torch::Tensor& hidden) const {
  return bias_.defined() ? at::layer_norm(hidden, {hidden.size(-1)}, weight_, bias_, epsilon_)
                         : at::rms_norm(hidden, {hidden.size(-1)}, weight_, epsilon_);
}

}  // namespace anymesh
