#include "framework/optim/sgd.h"

#include "framework/format/layout.h"

namespace anymesh {

std::vector<std::string> Sgd::states() const {
  if (options_.momentum == 0) return {};
  return {std::string(kMomentumState)};
}

void Sgd::update(const Tensors& t, const Step& step) const {
  torch::Tensor direction = t.gradient + t.weight * step.weight_decay;
  if (!t.states.empty()) {
    t.states[0].mul_(options_.momentum).add_(direction);
    direction = t.states[0];
  }
  t.weight.sub_(direction * step.lr);
}

std::vector<Optimizer::Setting> Sgd::settings() const {
  return {{"momentum", options_.momentum, "--sgd-momentum"},
          {"dampening", 0},
          {"nesterov", false},
          {"maximize", false},
          {"foreach", {}},
          {"differentiable", false},
          {"fused", {}}};
}

}  // namespace anymesh
