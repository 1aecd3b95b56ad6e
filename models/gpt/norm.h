#pragma once

#include <string>

#include "framework/kernels/norm.h"
#include "framework/param_spec.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// LayerNorm, or with --normalization rmsnorm the one without mean and bias (arXiv:1910.07467), over
// the last dim. Its parameters are whole on every tp rank.
class Norm {
 public:
  Norm(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const { return norm(hidden, params_); }
  // Of a residual sum, and the sum.
  SumAndNorm forward(const torch::Tensor& hidden, const torch::Tensor& update) const {
    return added_norm(hidden, update, params_);
  }

 private:
  NormParams params_;
};

}  // namespace anymesh
