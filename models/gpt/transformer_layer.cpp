#include "models/gpt/transformer_layer.h"

#include "framework/pipeline/unit_runner.h"

namespace anymesh {

TransformerLayer::TransformerLayer(const StageParams& params, int layer, const GptConfig& config,
                                   const RelativePositions& positions)
    : tp_(params.tp()),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.hidden_dropout),
      parallel_(config.use_parallel_residual),
      recomputes_mlp_(config.recomputes(config.has_experts(layer) ? "moe" : "mlp")),
      input_layernorm_(params.norm(std::to_string(layer + 2) + ".input_layernorm")),
      self_attention_(params, std::to_string(layer + 2) + ".self_attention", layer, config,
                      positions),
      post_attention_layernorm_(
          params.norm(std::to_string(layer + 2) + ".post_attention_layernorm")) {
  const std::string name = std::to_string(layer + 2) + ".mlp";
  if (config.has_experts(layer)) {
    experts_.emplace(params, name, config);
  } else {
    mlp_.emplace(params, name, config);
  }
}

torch::Tensor TransformerLayer::forward(const torch::Tensor& hidden, const LayerContext& context,
                                        ParallelAttention::Mix mix) const {
  const auto [residual, input] = kept_norm(hidden, input_layernorm_);
  const torch::Tensor attended = drop(self_attention_.forward(input, context, mix), context.dropout,
                                      DropoutSite::AttentionOutput);
  const auto [sum, normed] =
      parallel_ ? SumAndNorm{residual + attended, norm(residual, post_attention_layernorm_)}
                : added_norm(residual, attended, post_attention_layernorm_);
  const auto mlp = [this, context](const torch::Tensor& x) {
    return experts_ ? experts_->forward(x, context) : mlp_->forward(x, context.dropout);
  };
  const torch::Tensor mixed = recomputes_mlp_ ? recomputed(normed, mlp) : mlp(normed);  // [b, s, h]
  return sum + drop(mixed, context.dropout, DropoutSite::MlpOutput);
}

torch::Tensor TransformerLayer::drop(const torch::Tensor& hidden, const DropoutContext& context,
                                     DropoutSite site) const {
  return dropout(hidden, dropout_, context, {layer_ + 1, site}, tp_.first_element(hidden));
}

}  // namespace anymesh
