#pragma once

#include <string>

#include "framework/random/dropout.h"
#include "framework/tensor_parallel/layers.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Shapes, here and in every file of this folder:
//   b micro-batch   s sequence   h hidden   n heads   d = h/n   v vocabulary, padded   t tp size
//
// Legend of names: Megatron-DeepSpeed's, since they are the keys of its checkpoints.

class LayerNorm {
 public:
  LayerNorm(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;

 private:
  torch::Tensor weight_, bias_;  // [h]
  double epsilon_;
};

// Causal self-attention. Each tp rank holds n/t heads. The rows of the fused projection are
// Megatron's classic order, per head [q, k, v], so that cutting rows cuts heads.
class ParallelAttention {
 public:
  ParallelAttention(ParamBuilder& params, const std::string& name, int layer,
                    const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden,
                        const DropoutContext& context) const;  // [b, s, h] -> [b, s, h]

 private:
  torch::Tensor attend(
      const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
      const DropoutContext& context) const;  // [b, n/t, s, d] x 3 -> [b, n/t, s, d]

  int64_t heads_, first_head_, head_dim_;
  uint32_t layer_;
  double dropout_;
  ColumnParallelLinear query_key_value_;
  RowParallelLinear dense_;
};

class ParallelMlp {
 public:
  ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;  // [b, s, h] -> [b, s, h]

 private:
  const char* gelu_;
  ColumnParallelLinear dense_h_to_4h_;
  RowParallelLinear dense_4h_to_h_;
};

// hidden + dropout(attention(norm(hidden))), then + dropout(mlp(norm(.))): GPT-2's pre-norm block.
// `layer` counts from 0 over the whole model; in checkpoints it is layer + 2 (0 casts, 1 embeds).
class TransformerLayer {
 public:
  TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config);
  torch::Tensor forward(torch::Tensor hidden,
                        const DropoutContext& context) const;  // [b, s, h] -> [b, s, h]

 private:
  uint32_t layer_;
  double dropout_;
  LayerNorm input_layernorm_;
  ParallelAttention self_attention_;
  LayerNorm post_attention_layernorm_;
  ParallelMlp mlp_;
};

}  // namespace anymesh
