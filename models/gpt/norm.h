#pragma once

#include <string>

#include "framework/param_spec.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// LayerNorm, or with --normalization rmsnorm the one without mean and bias (arXiv:1910.07467), over
// the last dim. Its parameters are whole on every tp rank.
class Norm {
 public:
  Norm(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;

 private:
  torch::Tensor weight_, bias_;  // [h]; RMSNorm has no bias
  double epsilon_;
};

}  // namespace anymesh
