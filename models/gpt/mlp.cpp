#include "models/gpt/mlp.h"

#include <ATen/Functions.h>

#include "framework/kernels/activation.h"

namespace anymesh {

ParallelMlp::ParallelMlp(const StageParams& params, const std::string& name,
                         const GptConfig& config)
    : activation_(config.activation()),
      dense_h_to_4h_(params.column_parallel(name + ".dense_h_to_4h")),
      dense_4h_to_h_(params.row_parallel(name + ".dense_4h_to_h")) {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden) const {
  const torch::Tensor inner = dense_h_to_4h_.forward(hidden);  // [b, s, f/t]; gated: [b, s, 2f/t]
  return dense_4h_to_h_.forward(activate(inner));
}

torch::Tensor ParallelMlp::activate(const torch::Tensor& x) const {
  switch (activation_) {
    case GptConfig::Activation::kGeluTanh:
      return gelu_tanh(x);
    case GptConfig::Activation::kGeluErf:
      return at::gelu(x);
    case GptConfig::Activation::kRelu:
      return at::relu(x);
    case GptConfig::Activation::kSwiglu:
      return swiglu(x);
    case GptConfig::Activation::kGeglu:
      return geglu(x);
  }
  return {};
}

}  // namespace anymesh
