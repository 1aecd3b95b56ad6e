#pragma once

#include <torch/types.h>

#include <optional>

#include "framework/comm/communicator.h"
#include "framework/kernels/heads.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Positions as attention itself sees them. GPT-2 has none here, because its embedding learns them.
//
//   rotary (arXiv:2104.09864)   turns queries and keys by angles that grow with the position, so
//                               that a score depends on the distance
//   ALiBi (arXiv:2108.12409)    lowers a score by the distance times the head's slope
//
// The layers of a stage have copies, which share the tables.
struct RelativePositions {
  // `options` are the hidden state's. Tables are for samples of config.seq_length tokens.
  RelativePositions(const GptConfig& config, const Communicator& tp,
                    const torch::TensorOptions& options);

  // How heads of tokens at `positions`, int64 [b, s], or at 0 to s - 1, turn.
  Rotation rotation(const torch::Tensor& positions = {}) const { return {cos, sin, positions}; }

  // Cosines and sines of the angles, [s, r/2] for the first r elements of a head; undefined unless
  // rotary.
  torch::Tensor cos, sin;
  // Added to this rank's scores, with the causal mask included: [1, n/t, s, s], in fp32 (float64
  // for float64). Only with ALiBi.
  std::optional<torch::Tensor> score_bias;
};

// Returns how fast the pairs of a head turn, in radians per position: [r/2], float64. Before
// scaling it is theta^(-2i/r).
//
//   --use-rope-scaling                        Llama 3.1's: stretches a wavelength more if it fits
//                                             less often into the context of pretraining
//   --rotary-seq-len-interpolation-factor f   arXiv:2306.15595: position p is turned as p/f
//   --rope-type yarn                          arXiv:2309.00071: stretches the wavelengths of pairs
//                                             that turn seldom in the context of pretraining, and
//                                             makes cos and sin larger
//   --rope-type dynamic                       a greater theta, if seq_length exceeds that context
torch::Tensor rotary_frequencies(const GptConfig& config);

}  // namespace anymesh
