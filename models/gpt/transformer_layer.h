#pragma once

#include <optional>
#include <string>

#include "framework/kernels/norm.h"
#include "models/gpt/attention.h"
#include "models/gpt/experts.h"
#include "models/gpt/mlp.h"

namespace anymesh {

// Shapes, here and in every file of this folder:
//   b micro-batch   s sequence   h hidden   n heads, each d wide   k key and value heads
//   f MLP width   v vocabulary, padded   t tp size
// With --sequence-parallel the hidden state [b, s, h] between a layer's matrices is a rank's part
// [b, s/t, h] of the sequence.
//
// Names are Megatron-DeepSpeed's, since they are the keys of its checkpoints.

// hidden + dropout(attention(norm(hidden))), then + dropout(mlp(norm(.))): GPT-2's pre-norm block.
// With --use-parallel-residual the MLP reads hidden too, as GPT-NeoX's does, and both are added.
// Training and generation run the same block and differ in how positions are mixed.
// `layer` counts from 0 over the whole model; in checkpoints it is layer + 2 (0 casts, 1 embeds).
class TransformerLayer {
 public:
  TransformerLayer(const StageParams& params, int layer, const GptConfig& config,
                   const RelativePositions& positions);
  torch::Tensor forward(const torch::Tensor& hidden, const LayerContext& context,
                        ParallelAttention::Mix mix = {}) const;  // [b, s, h] -> [b, s, h]

  // The router of its experts; null if it has an MLP.
  const Router* router() const { return experts_ ? &experts_->router() : nullptr; }

 private:
  torch::Tensor drop(const torch::Tensor& hidden, const DropoutContext& context,
                     DropoutSite site) const;

  TensorParallel tp_;
  uint32_t layer_;
  double dropout_;
  bool parallel_, recomputes_mlp_;
  NormParams input_layernorm_;
  ParallelAttention self_attention_;
  NormParams post_attention_layernorm_;
  std::optional<ParallelMlp> mlp_;  // or experts
  std::optional<Experts> experts_;
};

}  // namespace anymesh
