#pragma once

#include <torch/types.h>

#include "framework/pipeline/stage.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// A sample is a piece of documents laid end to end. By default a token sees those of the documents
// before its own, and the loss counts every token. Megatron's flags change that:
//
//   tokens                  a  b  .  c  d  e  .  f       "." is the end of a document
//   --reset-position-ids    0  1  2  0  1  2  3  0       positions
//   --reset-attention-mask  0  0  0  3  3  3  3  7       the first token that each one sees
//   --eod-mask-loss         1  1  0  1  1  1  0  1       what the loss counts
//
// A position's loss is that of the next token, so the last line leaves out guesses at the next
// document's beginning.

// A micro-batch, as a layer sees it beside the hidden state.
struct LayerContext {
  DropoutContext dropout;
  // int64 [b, s]; undefined where the flags are off: positions 0 to s - 1, and all earlier tokens.
  torch::Tensor positions, first_keys;
  double loss_scale = 0;  // MicroBatch's
};

LayerContext layer_context(const MicroBatch& batch, const GptConfig& config);

// The mean over the tokens that count, of losses [b, s]. A micro-batch without any has loss 0. Or
// that mean for each sample, [b], summed as if it were alone.
torch::Tensor mean_loss(const torch::Tensor& losses, const torch::Tensor& inputs,
                        const GptConfig& config);
torch::Tensor mean_losses(const torch::Tensor& losses, const torch::Tensor& inputs,
                          const GptConfig& config);

}  // namespace anymesh
