#include "models/gpt/mlp.h"

#include <ATen/Functions.h>

#include "framework/kernels/activation.h"

namespace anymesh {

ParallelMlp::ParallelMlp(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : swiglu_(config.swiglu),
      tanh_gelu_(config.tanh_gelu()),
      dense_h_to_4h_(params, name + ".dense_h_to_4h", config.hidden_size,
                     int64_t{config.ffn_size()} * (swiglu_ ? 2 : 1),
                     Init::normal(config.init_method_std), config.add_bias_linear,
                     /*sub_params=*/swiglu_ ? 2 : 1),
      dense_4h_to_h_(params, name + ".dense_4h_to_h", config.ffn_size(), config.hidden_size,
                     Init::normal(config.residual_std()), config.add_bias_linear) {}

torch::Tensor ParallelMlp::forward(const torch::Tensor& hidden) const {
  return dense_4h_to_h_.forward(activate(dense_h_to_4h_.forward(hidden)));
}

torch::Tensor ParallelMlp::activate(const torch::Tensor& inner) const {
  if (swiglu_) return swiglu(inner);
  return tanh_gelu_ ? gelu_tanh(inner) : at::gelu(inner);
}

}  // namespace anymesh
