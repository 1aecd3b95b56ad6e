#pragma once

#include "framework/optim/optimizer.h"

namespace anymesh {

// Lion (arXiv:2302.06675), as DeepSpeed's FusedLion: the sign of an interpolated momentum, with
// decoupled weight decay.
//
//   w -= lr * (sign(b1 exp_avg + (1 - b1) g) + weight_decay w)
//   exp_avg = b2 exp_avg + (1 - b2) g
class Lion final : public Optimizer {
 public:
  explicit Lion(LionOptions options = {}) : options_(options) {}

  std::string name() const override { return "Lion"; }
  std::vector<std::string> states() const override { return {"exp_avg"}; }
  void update(const Tensors& tensors, const Step& step) const override;
  std::vector<Setting> settings() const override;

 private:
  LionOptions options_;
};

}  // namespace anymesh
