#pragma once

#include <torch/types.h>

#include <optional>

#include "framework/comm/communicator.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// What attention itself knows of positions: nothing in GPT-2, which learns them in its embedding.
//
//   rotary (arXiv:2104.09864)   turns queries and keys by angles that grow with the position, so
//                               that a score depends on the distance
//   ALiBi (arXiv:2108.12409)    lowers a score by the distance times a slope, which each head has
//                               of its own
//
// The layers of a stage share one: copies share the tables.
struct RelativePositions {
  // `options` are the hidden state's. Tables are for samples of config.seq_length tokens.
  RelativePositions(const GptConfig& config, const Communicator& tp,
                    const torch::TensorOptions& options);

  // Queries or keys [b, n, s, d], turned; untouched unless positions are rotary.
  torch::Tensor rotate(const torch::Tensor& heads) const;

  // Cosines and sines of those angles, [s, r/2] for the first r elements of a head; undefined
  // unless rotary.
  torch::Tensor cos, sin;
  // What to add to this rank's scores, the causal mask included: [1, n/t, s, s], in fp32 (float64
  // for float64). Only with ALiBi.
  std::optional<torch::Tensor> score_bias;
};

// How fast the pairs of a head turn, in radians per position: [r/2], float64. Before scaling it is
// theta^(-2i/r).
//
//   --use-rope-scaling                        Llama 3.1's: stretches a wavelength the more, the less
//                                             often it fits into the context of pretraining
//   --rotary-seq-len-interpolation-factor f   arXiv:2306.15595: position p is turned as p/f
torch::Tensor rotary_frequencies(const GptConfig& config);

}  // namespace anymesh
