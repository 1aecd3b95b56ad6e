#include "models/gpt/transformer_layer.h"

#include <ATen/Functions.h>

#include "framework/kernels/activation.h"
#include "models/gpt/norms.h"

namespace anymesh {

ParallelMlp::ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : activation_(config.activation()),
      dense_h_to_4h_(params, name + ".dense_h_to_4h", config.hidden_size,
                     int64_t{config.ffn_size()} * (config.gated() ? 2 : 1),
                     Init::normal(config.init_method_std), config.add_bias_linear,
                     /*sub_params=*/config.gated() ? 2 : 1),
      dense_4h_to_h_(params, name + ".dense_4h_to_h", config.ffn_size(), config.hidden_size,
                     Init::normal(config.residual_std()), config.add_bias_linear) {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden) const {
  const torch::Tensor inner = dense_h_to_4h_.forward(hidden);  // [b, s, f/t]; gated: [b, s, 2f/t]
  return dense_4h_to_h_.forward(activate(inner));
}

torch::Tensor ParallelMlp::activate(const torch::Tensor& x) const {
  switch (activation_) {
    case GptConfig::Activation::kGeluTanh:
      return gelu_tanh(x);
    case GptConfig::Activation::kGeluErf:
      return at::gelu(x);
    case GptConfig::Activation::kRelu:
      return at::relu(x);
    case GptConfig::Activation::kSwiglu:
      return swiglu(x);
    case GptConfig::Activation::kGeglu:
      return geglu(x);
  }
  return {};
}

TransformerLayer::TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config,
                                   const RelativePositions& positions)
    : tp_(params.tp()),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.hidden_dropout),
      parallel_(config.use_parallel_residual),
      input_layernorm_(make_norm(params, std::to_string(layer + 2) + ".input_layernorm", config)),
      self_attention_(params, std::to_string(layer + 2) + ".self_attention", layer, config,
                      positions),
      post_attention_layernorm_(
          make_norm(params, std::to_string(layer + 2) + ".post_attention_layernorm", config)),
      mlp_(params, std::to_string(layer + 2) + ".mlp", config) {}

torch::Tensor TransformerLayer::forward(const torch::Tensor& hidden, const LayerContext& context,
                                        ParallelAttention::Mix mix) const {
  const auto [residual, input] = kept_norm(hidden, input_layernorm_);
  const torch::Tensor attended = drop(self_attention_.forward(input, context, mix), context.dropout,
                                      DropoutSite::AttentionOutput);
  const auto [sum, normed] =
      parallel_ ? SumAndNorm{residual + attended, norm(residual, post_attention_layernorm_)}
                : added_norm(residual, attended, post_attention_layernorm_);
  return sum + drop(mlp_.forward(normed), context.dropout, DropoutSite::MlpOutput);
}

torch::Tensor TransformerLayer::drop(const torch::Tensor& hidden, const DropoutContext& context,
                                     DropoutSite site) const {
  return dropout(hidden, dropout_, context, {layer_ + 1, site}, tp_.first_element(hidden));
}

}  // namespace anymesh
