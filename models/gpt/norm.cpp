#include "models/gpt/norm.h"

#include <ATen/Functions.h>

namespace anymesh {

Norm::Norm(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : epsilon_(config.layernorm_epsilon) {
  ParamSpec spec{
      .shape = {config.hidden_size}, .weight_decay = false, .sequence_sum = params.tp().sequence};
  spec.name = name + ".weight";
  weight_ = params.add(spec, Init::constant(1));
  if (config.normalization == "rmsnorm") return;
  spec.name = name + ".bias";
  bias_ = params.add(spec, Init::constant(0));
}

torch::Tensor Norm::forward(const torch::Tensor& hidden) const {
  return bias_.defined() ? at::layer_norm(hidden, {hidden.size(-1)}, weight_, bias_, epsilon_)
                         : at::rms_norm(hidden, {hidden.size(-1)}, weight_, epsilon_);
}

}  // namespace anymesh
