#include "models/gpt/transformer_layer.h"

#include <ATen/Functions.h>

#include "framework/kernels/activation.h"

namespace anymesh {

NormParams make_norm(ParamBuilder& params, const std::string& name, const GptConfig& config) {
  ParamSpec spec{
      .shape = {config.hidden_size}, .weight_decay = false, .sequence_sum = params.tp().sequence};
  NormParams norm{.epsilon = config.layernorm_epsilon};
  spec.name = name + ".weight";
  norm.weight = params.add(spec, Init::constant(1));
  if (config.normalization == "rmsnorm") return norm;
  spec.name = name + ".bias";
  norm.bias = params.add(spec, Init::constant(0));
  return norm;
}

ParallelMlp::ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : swiglu_(config.swiglu),
      tanh_gelu_(config.tanh_gelu()),
      dense_h_to_4h_(params, name + ".dense_h_to_4h", config.hidden_size,
                     int64_t{config.ffn_size()} * (swiglu_ ? 2 : 1),
                     Init::normal(config.init_method_std), config.add_bias_linear,
                     /*sub_params=*/swiglu_ ? 2 : 1),
      dense_4h_to_h_(params, name + ".dense_4h_to_h", config.ffn_size(), config.hidden_size,
                     Init::normal(config.residual_std()), config.add_bias_linear) {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden) const {
  const torch::Tensor inner = dense_h_to_4h_.forward(hidden);  // [b, s, f/t]; SwiGLU: [b, s, 2f/t]
  return dense_4h_to_h_.forward(swiglu_      ? swiglu(inner)
                                : tanh_gelu_ ? gelu_tanh(inner)
                                             : at::gelu(inner));
}

TransformerLayer::TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config,
                                   const RelativePositions& positions)
    : tp_(params.tp()),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.hidden_dropout),
      input_layernorm_(make_norm(params, std::to_string(layer + 2) + ".input_layernorm", config)),
      self_attention_(params, std::to_string(layer + 2) + ".self_attention", layer, config,
                      positions),
      post_attention_layernorm_(
          make_norm(params, std::to_string(layer + 2) + ".post_attention_layernorm", config)),
      mlp_(params, std::to_string(layer + 2) + ".mlp", config) {}

torch::Tensor TransformerLayer::forward(const torch::Tensor& hidden, const DropoutContext& context,
                                        ParallelAttention::Mix mix) const {
  const torch::Tensor attended =
      self_attention_.forward(norm(hidden, input_layernorm_), context, mix);
  const auto [sum, normed] = added_norm(
      hidden, drop(attended, context, DropoutSite::AttentionOutput), post_attention_layernorm_);
  return sum + drop(mlp_.forward(normed), context, DropoutSite::MlpOutput);
}

torch::Tensor TransformerLayer::drop(const torch::Tensor& hidden, const DropoutContext& context,
                                     DropoutSite site) const {
  return dropout(hidden, dropout_, context, {layer_ + 1, site}, tp_.first_element(hidden));
}

}  // namespace anymesh
