#include "framework/optim/lion.h"

namespace anymesh {

void Lion::update(const Tensors& t, const Step& step) const {
  const torch::Tensor &g = t.gradient, &m = t.states[0];
  const torch::Tensor sign = (m * options_.beta1 + g * (1 - options_.beta1)).sign_();
  t.weight.sub_((sign + t.weight * step.weight_decay) * step.lr);
  m.mul_(options_.beta2).add_(g * (1 - options_.beta2));
}

std::vector<Optimizer::Setting> Lion::settings() const {
  return {{"betas", Value::tuple({options_.beta1, options_.beta2}), "--lion-beta1, --lion-beta2"}};
}

}  // namespace anymesh
