#include "models/gpt/norm.h"

namespace anymesh {

Norm::Norm(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : params_{.epsilon = config.layernorm_epsilon} {
  ParamSpec spec{
      .shape = {config.hidden_size}, .weight_decay = false, .sequence_sum = params.tp().sequence};
  spec.name = name + ".weight";
  params_.weight = params.add(spec, Init::constant(1));
  if (config.normalization == "rmsnorm") return;
  spec.name = name + ".bias";
  params_.bias = params.add(spec, Init::constant(0));
}

}  // namespace anymesh
