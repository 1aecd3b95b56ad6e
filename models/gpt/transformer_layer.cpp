#include "models/gpt/transformer_layer.h"

namespace anymesh {

TransformerLayer::TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config,
                                   const RelativePositions& positions)
    : tp_(params.tp()),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.hidden_dropout),
      input_layernorm_(params, std::to_string(layer + 2) + ".input_layernorm", config),
      self_attention_(params, std::to_string(layer + 2) + ".self_attention", layer, config,
                      positions),
      post_attention_layernorm_(params, std::to_string(layer + 2) + ".post_attention_layernorm",
                                config),
      mlp_(params, std::to_string(layer + 2) + ".mlp", config) {}

torch::Tensor TransformerLayer::forward(const torch::Tensor& hidden,
                                        const DropoutContext& context) const {
  const torch::Tensor attended = self_attention_.forward(input_layernorm_.forward(hidden), context);
  const auto [sum, normed] = post_attention_layernorm_.forward(
      hidden, drop(attended, context, DropoutSite::AttentionOutput));
  return sum + drop(mlp_.forward(normed), context, DropoutSite::MlpOutput);
}

torch::Tensor TransformerLayer::drop(const torch::Tensor& hidden, const DropoutContext& context,
                                     DropoutSite site) const {
  return dropout(hidden, dropout_, context, {layer_ + 1, site}, tp_.first_element(hidden));
}

}  // namespace anymesh
