#include "framework/optim/optimizer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "framework/optim/adamw.h"
#include "framework/optim/lion.h"
#include "framework/optim/muon.h"
#include "framework/optim/sgd.h"
#include "framework/param_spec.h"

namespace anymesh {
namespace {

// A weight with its states, beside the gradient of a step.
struct Weight {
  explicit Weight(const Optimizer& o, torch::Tensor start) : optimizer(o) {
    tensors.weight = std::move(start);
    for (size_t i = 0; i < o.states().size(); ++i)
      tensors.states.push_back(torch::zeros_like(tensors.weight));
  }
  void step(int number, const torch::Tensor& gradient) {
    tensors.gradient = gradient;
    optimizer.step({tensors}, {number, 0.05, 0.3, 0.25});
  }
  const Optimizer& optimizer;
  Optimizer::Tensors tensors;
};

template <class Reference>
void expect_torchs(const Optimizer& optimizer, Reference&& make) {
  torch::manual_seed(1);
  Weight ours(optimizer, torch::randn({1001}, torch::kDouble));
  torch::Tensor theirs = ours.tensors.weight.clone().requires_grad_();
  auto reference = make(theirs);
  for (int step = 1; step <= 5; ++step) {
    const torch::Tensor gradient = torch::randn({1001}, torch::kDouble);
    theirs.mutable_grad() = gradient * 0.25;
    reference.step();
    ours.step(step, gradient);
  }
  EXPECT_TRUE(ours.tensors.weight.allclose(theirs.detach(), 1e-13, 1e-13));
}

TEST(Optimizer, SgdEqualsTorchs) {
  for (const double momentum : {0.0, 0.9})
    expect_torchs(Sgd({momentum}), [&](const torch::Tensor& weight) {
      return torch::optim::SGD({weight},
                               torch::optim::SGDOptions(0.05).momentum(momentum).weight_decay(0.3));
    });
  EXPECT_TRUE(Sgd({0}).states().empty());
}

// AdamW by LibTorch's operators, for devices without a kernel of ours.
TEST(Optimizer, AdamWByOperatorsEqualsTorchs) {
  struct ByOperators final : Optimizer {
    std::string name() const override { return adamw.name(); }
    std::vector<std::string> states() const override { return adamw.states(); }
    void update(const Tensors& t, const Step& step) const override { adamw.update(t, step); }
    AdamW adamw{{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6}};
  };
  expect_torchs(ByOperators(), [](const torch::Tensor& weight) {
    return torch::optim::AdamW(
        {weight}, torch::optim::AdamWOptions(0.05).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.3));
  });
}

TEST(Optimizer, LionIsThePapers) {
  const Lion lion({.beta1 = 0.8, .beta2 = 0.95});
  torch::manual_seed(2);
  Weight ours(lion, torch::randn({100}, torch::kDouble));
  torch::Tensor w = ours.tensors.weight.clone(), m = torch::zeros_like(w);
  for (int step = 1; step <= 5; ++step) {
    const torch::Tensor gradient = torch::randn({100}, torch::kDouble);
    ours.step(step, gradient);
    for (int64_t i = 0; i < 100; ++i) {
      const double g = 0.25 * gradient[i].item<double>(), before = m[i].item<double>(),
                   c = 0.8 * before + 0.2 * g;
      w[i] -= 0.05 * ((c > 0) - (c < 0) + 0.3 * w[i].item<double>());
      m[i] = 0.95 * before + 0.05 * g;
    }
  }
  EXPECT_TRUE(ours.tensors.weight.allclose(w, 1e-13, 1e-13));
}

TEST(Optimizer, WhereATensorIsCutChangesNoBit) {
  constexpr int64_t n = 5'000;
  const Muon muon;
  const AdamW adamw;
  const Sgd sgd;
  const Lion lion;
  for (const Optimizer* optimizer : std::vector<const Optimizer*>{&muon, &adamw, &sgd, &lion}) {
    torch::manual_seed(3);
    const torch::Tensor start = torch::randn({n}), gradient = torch::randn({n});
    const auto run = [&](const std::vector<int64_t>& cuts) {
      Weight all(*optimizer, start.clone());
      for (int step = 1; step <= 3; ++step) {
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          const auto piece = [&](const torch::Tensor& t) {
            return t.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
          };
          Optimizer::Tensors part{piece(all.tensors.weight), piece(gradient).clone(), {}, {}};
          for (const torch::Tensor& state : all.tensors.states) part.states.push_back(piece(state));
          Optimizer::Step facts{step, 1e-2, 0.1, 0.7};
          if (optimizer->sees_matrices()) {
            optimizer->prepare(part, facts);
            facts.gradient_scale = 1;
          }
          optimizer->step({part}, facts);
        }
      }
      return all.tensors.weight;
    };
    EXPECT_TRUE(torch::equal(run({0, n}), run({0, 1, 14, 1'700, 1'701, 3'333, n})))
        << optimizer->name();
  }
}

TEST(Muon, MakesMatricesNearlyOrthogonal) {
  torch::manual_seed(4);
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const auto& [rows, columns] : {std::pair(12, 30), std::pair(30, 12), std::pair(9, 9)}) {
      const torch::Tensor of =
          Muon().of_matrix(torch::randn({2, rows, columns}).to(dtype), {}, {}) /
          std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
      const torch::Tensor values = at::linalg_svdvals(of.to(torch::kDouble));
      EXPECT_GT(values.min().item<double>(), 0.3) << rows;
      EXPECT_LT(values.max().item<double>(), 1.3) << rows;
    }
  }
}

TEST(Muon, ScaleModes) {
  const torch::Tensor matrix = torch::randn({32, 8});
  const torch::Tensor plain = Muon({.fp32 = true}).of_matrix(matrix, {}, {}) / 2;  // sqrt(32 / 8)
  const auto scaled = [&](const char* mode) {
    return Muon({.fp32 = true, .scale_mode = mode}).of_matrix(matrix, {}, {});
  };
  EXPECT_TRUE(scaled("spectral").allclose(plain * std::sqrt(32.0)));
  EXPECT_TRUE(scaled("unit_rms_norm").allclose(plain * 2));
  EXPECT_TRUE(Muon({.fp32 = true, .scale_mode = "unit_rms_norm"})
                  .of_matrix(matrix.t(), {}, {})
                  .allclose(plain.t() / 2, 1e-4, 1e-5));
}

// In bf16 the iterations are those in fp32, but for rounding.
TEST(Muon, PrecisionsAgree) {
  torch::manual_seed(5);
  const torch::Tensor matrix = torch::randn({48, 20}),
                      exact = Muon().of_matrix(matrix.to(torch::kDouble), {}, {}).to(torch::kFloat);
  const auto error = [&](const Muon& muon) {
    return ((muon.of_matrix(matrix, {}, {}) - exact).norm() / exact.norm()).item<double>();
  };
  EXPECT_LT(error(Muon({.fp32 = true})), 1e-5);
  EXPECT_LT(error(Muon()), 6e-2);
  EXPECT_GT(error(Muon()), 1e-4);
}

TEST(Muon, LeavesOthersToAdamW) {
  const Muon muon;
  const auto name_of = [&](const ParamSpec& spec) { return muon.of(spec).name(); };
  EXPECT_EQ(name_of({.shape = {4, 5}}), "Muon");
  EXPECT_EQ(name_of({.shape = {3, 4, 5}, .experts = true}), "Muon");
  EXPECT_EQ(name_of({.shape = {5}}), "AdamW");
  EXPECT_EQ(name_of({.shape = {4, 5}, .vocabulary = true}), "AdamW");
  EXPECT_EQ(name_of({.shape = {4, 5}, .looked_up = true}), "AdamW");
}

}  // namespace
}  // namespace anymesh
