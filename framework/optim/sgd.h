#pragma once

#include "framework/optim/optimizer.h"

namespace anymesh {

// Stochastic gradient descent, as torch.optim.SGD: the weight decay is a part of the gradient.
//
//   momentum_buffer = momentum * momentum_buffer + (g + weight_decay * w)      w -= lr * that
//
// Without momentum there is no state.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(SgdOptions options = {}) : options_(options) {}

  std::string name() const override { return "SGD"; }
  std::vector<std::string> states() const override;
  void update(const Tensors& tensors, const Step& step) const override;
  std::vector<Setting> settings() const override;

 private:
  SgdOptions options_;
};

}  // namespace anymesh
