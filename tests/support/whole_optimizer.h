#pragma once

#include <ATen/Functions.h>

#include "framework/optim/optimizer.h"
#include "framework/param_spec.h"

namespace anymesh {

// An optimizer with a state of each kind: one like the parameter, factors, a matrix, a number. It
// leaves experts to SGD.
class WholeOptimizer final : public Optimizer {
 public:
  class Plain final : public Optimizer {
   public:
    std::string name() const override { return "Plain"; }
    void update(const Tensors& t, const Step& step) const override {
      t.weight.sub_(t.gradient * step.lr);
    }
  };

  std::string name() const override { return "Whole"; }
  std::vector<std::string> states() const override { return {"momentum"}; }
  bool counts_steps() const override { return true; }
  bool sees_matrices() const override { return true; }
  const Optimizer& of(const ParamSpec& spec) const override {
    return spec.experts ? static_cast<const Optimizer&>(plain_) : *this;
  }

  std::vector<WholeState> whole_states(const std::vector<int64_t>& shape) const override {
    if (shape.size() < 2) return {{"size", {}}};
    return {{"size", {}}, {"rows", {shape[0]}}, {"gram", {shape[1], shape[1]}}};
  }
  void prepare(const Tensors& t, const Step& step) const override {
    const torch::Tensor& m = t.states[0];
    m.add_((t.gradient * step.gradient_scale - m) * 0.25);
    t.gradient.copy_(m);
  }
  torch::Tensor of_matrix(const torch::Tensor& matrix, const std::vector<torch::Tensor>& states,
                          const Step& step) const override {
    const double decay = 1 - 1.0 / static_cast<double>(step.number + 1);
    states[0].copy_(states[0] * decay + matrix.square().mean());
    if (matrix.dim() < 2) return matrix / (states[0].sqrt() + 1e-3);
    states[1].copy_(states[1] * decay + matrix.square().mean(1));
    states[2].copy_(states[2] * decay + matrix.t().mm(matrix));
    const torch::Tensor scale = states[2].diag().sqrt() + 1e-3;  // [n]
    return matrix / (states[1].sqrt().unsqueeze(1) + 1e-3) / scale;
  }
  void update(const Tensors& t, const Step& step) const override {
    t.weight.mul_(1 - step.lr * step.weight_decay).sub_(t.gradient * step.lr);
  }

 private:
  Plain plain_;
};

}  // namespace anymesh
