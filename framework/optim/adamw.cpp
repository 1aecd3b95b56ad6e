#include "framework/optim/adamw.h"

#include <cmath>

#include "framework/kernels/adamw_sweeps.h"

namespace anymesh {

void AdamW::step(const std::vector<Tensors>& pieces, const Step& step) const {
  if (pieces.empty()) return;
  const torch::Tensor& first = pieces[0].weight;
  if (!first.is_cpu() && !first.is_cuda()) return Optimizer::step(pieces, step);
  std::vector<AdamwTensors> fused;
  fused.reserve(pieces.size());
  for (const Tensors& p : pieces)
    fused.push_back({p.weight, p.gradient, p.states[0], p.states[1], p.rounded});
  adamw_step(fused, options_, step.number, step.lr, step.weight_decay, step.gradient_scale);
}

void AdamW::update(const Tensors& t, const Step& step) const {
  const auto steps = static_cast<double>(step.number);
  const auto [beta1, beta2, eps] = options_;
  const double c1 = 1 - std::pow(beta1, steps), c2 = 1 - std::pow(beta2, steps);
  const torch::Tensor &g = t.gradient, &m = t.states[0], &v = t.states[1];
  m.copy_(m * beta1 + g * (1 - beta1));
  v.copy_(v * beta2 + g * g * (1 - beta2));
  t.weight.sub_(step.lr / c1 * m / ((v * (1 / c2)).sqrt() + eps) +
                step.lr * step.weight_decay * t.weight);
}

std::vector<Optimizer::Setting> AdamW::settings() const {
  std::vector<Setting> all{
      {"betas", Value::tuple({options_.beta1, options_.beta2}), "--adam-beta1, --adam-beta2"},
      {"eps", options_.eps, "--adam-eps"},
      {"amsgrad", false},
      {"maximize", false},
      {"foreach", {}},
      {"capturable", false},
      {"differentiable", false},
      {"fused", {}},
      {"decoupled_weight_decay", true}};
  all.insert(all.end(), more_.begin(), more_.end());
  return all;
}

}  // namespace anymesh
