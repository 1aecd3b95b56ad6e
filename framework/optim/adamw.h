#pragma once

#include "framework/optim/optimizer.h"

namespace anymesh {

// AdamW, with decoupled weight decay (arXiv:1711.05101), as torch.optim.AdamW and DeepSpeed's
// FusedAdam. kernels/adamw_sweeps.h has the update, fused on CPUs and GPUs.
class AdamW final : public Optimizer {
 public:
  // `more` are settings to write beside its own.
  explicit AdamW(AdamOptions options = {}, std::vector<Setting> more = {})
      : options_(options), more_(std::move(more)) {}

  std::string name() const override { return "AdamW"; }
  std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool counts_steps() const override { return true; }
  void step(const std::vector<Tensors>& pieces, const Step& step) const override;
  void update(const Tensors& tensors, const Step& step) const override;  // by LibTorch's operators
  std::vector<Setting> settings() const override;

 private:
  AdamOptions options_;
  std::vector<Setting> more_;
};

}  // namespace anymesh
