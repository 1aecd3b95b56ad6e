#include "models/gpt/norms.h"

namespace anymesh {
namespace {

NormParams make_norm_of(int64_t width, bool tp_sum, ParamBuilder& params, const std::string& name,
                        const GptConfig& config) {
  ParamSpec spec{.shape = {width}, .weight_decay = false, .tp_sum = tp_sum};
  NormParams norm{.epsilon = config.layernorm_epsilon,
                  .offset = config.apply_layernorm_1p ? 1.0 : 0.0};
  spec.name = name + ".weight";
  norm.weight = params.add(spec, Init::constant(1 - norm.offset));
  if (config.rms_norm()) return norm;
  spec.name = name + ".bias";
  norm.bias = params.add(spec, Init::constant(0));
  return norm;
}

}  // namespace

NormParams make_norm(ParamBuilder& params, const std::string& name, const GptConfig& config) {
  return make_norm_of(config.hidden_size, params.tp().sequence, params, name, config);
}

NormParams make_head_norm(ParamBuilder& params, const std::string& name, const GptConfig& config) {
  if (!config.qk_layernorm) return {};
  return make_norm_of(config.head_dim(), /*tp_sum=*/true, params, name, config);
}

}  // namespace anymesh
