#pragma once

#include <string>

#include "models/gpt/stage_params.h"

namespace anymesh {

// Two matrices with a non-linearity between them, f wide inside:
//
//   GELU     4h_to_h(gelu(h_to_4h(x)))
//   ReLU     4h_to_h(relu(h_to_4h(x)))
//   SwiGLU   4h_to_h(silu(gate(x)) * up(x)), with h_to_4h the rows [gate; up] (arXiv:2002.05202)
//   GeGLU    4h_to_h(gelu(gate(x)) * up(x))
//
// The dropout is of its matrices' adapters, if they have any (lora.h).
class ParallelMlp {
 public:
  ParallelMlp(const StageParams& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden,
                        const DropoutContext& dropout) const;  // [b, s, h] -> [b, s, h]

 private:
  torch::Tensor activate(const torch::Tensor& inner) const;

  GptConfig::Activation activation_;
  Adapted<ColumnParallelLinear> dense_h_to_4h_;
  Adapted<RowParallelLinear> dense_4h_to_h_;
};

}  // namespace anymesh
