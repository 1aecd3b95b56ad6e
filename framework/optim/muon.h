#pragma once

#include "framework/format/layout.h"
#include "framework/optim/adamw.h"

namespace anymesh {

// Muon (kellerjordan.github.io/posts/muon; arXiv:2502.16982), as torch.optim.Muon and DeepSpeed's:
// the momentum of a matrix, made nearly orthogonal by five Newton-Schulz iterations.
//
//   momentum_buffer = mu momentum_buffer + (1 - mu) g
//   u = (1 - mu) g + mu momentum_buffer           Nesterov's; without it, the momentum itself
//   w -= lr * (scale * newton_schulz(u) + weight_decay w)
//
//   scale   shape_scaling sqrt(max(1, m / n)), spectral sqrt(max(m, n)), unit_rms_norm sqrt(m / n)
//
// A matrix is a parameter of two dims that is no table of embeddings, as it is on one rank: fused
// queries, keys and values are one matrix, and so are a gate and its projection. Experts are a
// matrix each. AdamW has all other parameters. The iterations run in bf16, as DeepSpeed's
// ns_method "standard" does, or in fp32; in float64 for float64 models.
class Muon final : public Optimizer {
 public:
  explicit Muon(MuonOptions options = {}, AdamOptions rest = {})
      : options_(std::move(options)), adamw_(rest, {{std::string(keys::kUseMuon), false}}) {}

  std::string name() const override { return "Muon"; }
  std::vector<std::string> states() const override;
  double lr_scale() const override { return options_.lr_scale; }
  const Optimizer& of(const ParamSpec& spec) const override;
  bool sees_matrices() const override { return true; }
  void prepare(const Tensors& tensors, const Step& step) const override;
  torch::Tensor of_matrix(const torch::Tensor& matrix, const std::vector<torch::Tensor>&,
                          const Step&) const override;
  void update(const Tensors& tensors, const Step& step) const override;
  std::vector<Setting> settings() const override;

 private:
  MuonOptions options_;
  AdamW adamw_;
};

}  // namespace anymesh
