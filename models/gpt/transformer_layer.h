#pragma once

#include <string>

#include "framework/kernels/norm.h"
#include "models/gpt/attention.h"

namespace anymesh {

// Shapes, here and in every file of this folder:
//   b micro-batch   s sequence   h hidden   n heads, each d wide   k key and value heads
//   f MLP width   v vocabulary, padded   t tp size
// With --sequence-parallel the hidden state [b, s, h] between a layer's matrices is a rank's part
// [b, s/t, h] of the sequence.
//
// Names are Megatron-DeepSpeed's, since they are the keys of its checkpoints.

// Two matrices with a non-linearity between them, f wide inside:
//
//   GELU     4h_to_h(gelu(h_to_4h(x)))
//   ReLU     4h_to_h(relu(h_to_4h(x)))
//   SwiGLU   4h_to_h(silu(gate(x)) * up(x)), with h_to_4h the rows [gate; up] (arXiv:2002.05202)
//   GeGLU    4h_to_h(gelu(gate(x)) * up(x))
class ParallelMlp {
 public:
  ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;  // [b, s, h] -> [b, s, h]

 private:
  torch::Tensor activate(const torch::Tensor& inner) const;

  GptConfig::Activation activation_;
  ColumnParallelLinear dense_h_to_4h_;
  RowParallelLinear dense_4h_to_h_;
};

// hidden + dropout(attention(norm(hidden))), then + dropout(mlp(norm(.))): GPT-2's pre-norm block.
// With --use-parallel-residual the MLP reads hidden too, as GPT-NeoX's does, and both are added.
// Training and generation run the same block and differ in how positions are mixed.
// `layer` counts from 0 over the whole model; in checkpoints it is layer + 2 (0 casts, 1 embeds).
class TransformerLayer {
 public:
  TransformerLayer(ParamBuilder& params, int layer, const GptConfig& config,
                   const RelativePositions& positions);
  torch::Tensor forward(const torch::Tensor& hidden, const LayerContext& context,
                        ParallelAttention::Mix mix = {}) const;  // [b, s, h] -> [b, s, h]

 private:
  torch::Tensor drop(const torch::Tensor& hidden, const DropoutContext& context,
                     DropoutSite site) const;

  TensorParallel tp_;
  uint32_t layer_;
  double dropout_;
  bool parallel_;
  NormParams input_layernorm_;
  ParallelAttention self_attention_;
  NormParams post_attention_layernorm_;
  ParallelMlp mlp_;
};

}  // namespace anymesh
