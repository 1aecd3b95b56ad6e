#include "models/gpt/mlp.h"

#include <ATen/Functions.h>

#include "framework/kernels/activation.h"

namespace anymesh {
namespace {

LoraAdapter adapter_of_h_to_4h(const StageParams& params, const std::string& name, bool gated) {
  const int64_t rows = params[name + ".dense_h_to_4h.weight"].size(0);
  std::vector<std::pair<std::string, int64_t>> parts = {{name + ".up_proj", rows}};
  if (gated) parts = {{name + ".gate_proj", rows / 2}, {name + ".up_proj", rows / 2}};
  return params.adapter(parts, DropoutSite::DenseHTo4hAdapter);
}

}  // namespace

ParallelMlp::ParallelMlp(const StageParams& params, const std::string& name,
                         const GptConfig& config)
    : activation_(config.activation()),
      dense_h_to_4h_{params.column_parallel(name + ".dense_h_to_4h"),
                     adapter_of_h_to_4h(params, name, config.gated())},
      dense_4h_to_h_{params.row_parallel(name + ".dense_4h_to_h"),
                     params.adapter({{name + ".down_proj", config.hidden_size}},
                                    DropoutSite::Dense4hToHAdapter)} {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden,
                                   const DropoutContext& dropout) const {
  const torch::Tensor inner = dense_h_to_4h_.forward(hidden, dropout);  // [b, s, f/t] or 2f/t
  return dense_4h_to_h_.forward(activate(inner), dropout);
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
