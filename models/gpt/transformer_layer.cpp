#include "models/gpt/transformer_layer.h"

#include <ATen/Functions.h>

#include <cmath>

namespace anymesh {
namespace {

// Matrices that write to the residual stream start smaller, since 2 * num_layers of them add up
// there.
Init residual_init(const GptConfig& config) {
  return Init::normal(config.init_method_std / std::sqrt(2.0 * config.num_layers));
}

}  // namespace

LayerNorm::LayerNorm(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : weight_(params.add(
          {.name = name + ".weight", .shape = {config.hidden_size}, .weight_decay = false},
          Init::constant(1))),
      bias_(
          params.add({.name = name + ".bias", .shape = {config.hidden_size}, .weight_decay = false},
                     Init::constant(0))),
      epsilon_(config.layernorm_epsilon) {}

torch::Tensor LayerNorm::forward(const torch::Tensor& hidden) const {
  return at::layer_norm(hidden, {hidden.size(-1)}, weight_, bias_, epsilon_);
}

ParallelAttention::ParallelAttention(ParamBuilder& params, const std::string& name, int layer,
                                     const GptConfig& config)
    : heads_(config.num_attention_heads / params.tp()->size()),
      first_head_(heads_ * params.tp()->rank()),
      head_dim_(config.hidden_size / config.num_attention_heads),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.attention_dropout),
      query_key_value_(params, name + ".query_key_value", config.hidden_size,
                       3 * config.hidden_size, Init::normal(config.init_method_std)),
      dense_(params, name + ".dense", config.hidden_size, config.hidden_size,
             residual_init(config)) {}

torch::Tensor ParallelAttention::forward(const torch::Tensor& hidden,
                                         const DropoutContext& context) const {
  const int64_t b = hidden.size(0), s = hidden.size(1);
  const torch::Tensor qkv = query_key_value_
                                .forward(hidden)                     // [b, s, 3h/t]
                                .view({b, s, heads_, 3, head_dim_})  // [b, s, n/t, 3, d]
                                .permute({3, 0, 2, 1, 4});           // [3, b, n/t, s, d]
  const torch::Tensor mixed = attend(qkv[0], qkv[1], qkv[2], context);
  return dense_.forward(mixed.transpose(1, 2).reshape({b, s, heads_ * head_dim_}));  // [b, s, h]
}

torch::Tensor ParallelAttention::attend(const torch::Tensor& q, const torch::Tensor& k,
                                        const torch::Tensor& v,
                                        const DropoutContext& context) const {
  const bool drops = dropout_ > 0 && !context.samples.empty();
  if (!drops)
    return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0,
                                            /*is_causal=*/true);

  // The explicit form: the fused kernel would draw a mask of its own.
  const int64_t s = q.size(2);
  const torch::Tensor future = at::ones({s, s}, q.options().dtype(torch::kBool)).triu(1);
  const torch::Tensor scores =
      at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(head_dim_));
  const torch::Tensor weights =
      at::softmax(scores.masked_fill(future, -INFINITY), -1);  // [b, n/t, s, s]
  return at::matmul(dropout(weights, dropout_, context, {layer_ + 1, DropoutSite::Attention},
                            first_head_ * s * s),
                    v);
}

ParallelMlp::ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : gelu_(config.bias_gelu_fusion ? "tanh" : "none"),
      dense_h_to_4h_(params, name + ".dense_h_to_4h", config.hidden_size, config.ffn_size(),
                     Init::normal(config.init_method_std)),
      dense_4h_to_h_(params, name + ".dense_4h_to_h", config.ffn_size(), config.hidden_size,
                     residual_init(config)) {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden) const {
  return dense_4h_to_h_.forward(
      at::gelu(dense_h_to_4h_.forward(hidden), gelu_));  // [b, s, 4h/t] inside
}

TransformerLayer::TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config)
    : layer_(static_cast<uint32_t>(layer)),
      dropout_(config.hidden_dropout),
      input_layernorm_(params, std::to_string(layer + 2) + ".input_layernorm", config),
      self_attention_(params, std::to_string(layer + 2) + ".self_attention", layer, config),
      post_attention_layernorm_(params, std::to_string(layer + 2) + ".post_attention_layernorm",
                                config),
      mlp_(params, std::to_string(layer + 2) + ".mlp", config) {}

torch::Tensor TransformerLayer::forward(torch::Tensor hidden, const DropoutContext& context) const {
  const torch::Tensor attended = self_attention_.forward(input_layernorm_.forward(hidden), context);
  hidden =
      hidden + dropout(attended, dropout_, context, {layer_ + 1, DropoutSite::AttentionOutput});
  const torch::Tensor mapped = mlp_.forward(post_attention_layernorm_.forward(hidden));
  return hidden + dropout(mapped, dropout_, context, {layer_ + 1, DropoutSite::MlpOutput});
}

}  // namespace anymesh
