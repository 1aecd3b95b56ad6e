#include "framework/optim/muon.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "framework/param_spec.h"

namespace anymesh {
namespace {

// The factors of X, (X X^T) X and (X X^T)^2 X, which grow small singular values the fastest.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

// Returns x [.., m, n] with singular values near 1. Operators and roundings are in DeepSpeed's
// order, since bf16 shows it.
torch::Tensor newton_schulz(torch::Tensor x, int steps) {
  const bool tall = x.size(-2) > x.size(-1);
  if (tall) x = x.mT();
  x = x / (at::linalg_vector_norm(x, 2, {-2, -1}, /*keepdim=*/true) + 1e-7);
  for (int i = 0; i < steps; ++i) {
    const torch::Tensor gram = x.matmul(x.mT());  // [.., m, m], m <= n
    x = kA * x + (kB * gram + (kC * gram).matmul(gram)).matmul(x);
  }
  return tall ? x.mT() : x;
}

double scale_of(const std::string& mode, double rows, double columns) {
  if (mode == "spectral") return std::sqrt(std::max(rows, columns));
  if (mode == "unit_rms_norm") return std::sqrt(rows / columns);
  return std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

std::vector<std::string> Muon::states() const { return {std::string(kMomentumState)}; }

const Optimizer& Muon::of(const ParamSpec& spec) const {
  const bool matrix = spec.shape.size() >= 2 && !spec.vocabulary && !spec.looked_up;
  return matrix ? static_cast<const Optimizer&>(*this) : adamw_;
}

void Muon::prepare(const Tensors& t, const Step& step) const {
  const torch::Tensor g = t.gradient * step.gradient_scale, &m = t.states[0];
  const double mu = options_.momentum;
  m.add_((g - m) * (1 - mu));
  t.gradient.copy_(options_.nesterov ? m - (m - g) * (1 - mu) : m);
}

torch::Tensor Muon::of_matrix(const torch::Tensor& matrix, const std::vector<torch::Tensor>&,
                              const Step&) const {
  const auto dtype = matrix.scalar_type();
  const bool rounds = dtype == torch::kFloat && !options_.fp32;
  torch::Tensor x =
      newton_schulz(rounds ? matrix.to(torch::kBFloat16) : matrix, options_.newton_schulz_steps);
  x = x * scale_of(options_.scale_mode, static_cast<double>(x.size(-2)),
                   static_cast<double>(x.size(-1)));
  return x.to(dtype).contiguous();
}

void Muon::update(const Tensors& t, const Step& step) const {
  t.weight.mul_(1 - step.lr * step.weight_decay).sub_(t.gradient * step.lr);
}

std::vector<Optimizer::Setting> Muon::settings() const {
  return {{"momentum", options_.momentum, "--muon-momentum"},
          {"nesterov", options_.nesterov, "--muon-no-nesterov"},
          {"ns_steps", options_.newton_schulz_steps, "--muon-num-ns-steps"},
          {"ns_method", "standard"},
          {std::string(keys::kUseMuon), true}};
}

}  // namespace anymesh
