// Sums of gradients that do not depend on their order.
#include "framework/zero/exact_sum.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace anymesh {
namespace {

TEST(ExactSum, HasTheSameBitsInAnyOrder) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    ExactSum exact(1, 1);
    exact.begin(1, 12);
    std::vector<torch::Tensor> terms;
    torch::Tensor expected = torch::zeros({1000}, torch::kDouble);
    for (int i = 0; i < 12; ++i) {
      terms.push_back((torch::randn({1000}) * std::exp2(-2 * i)).to(dtype));
      expected += terms.back().to(torch::kDouble);
    }
    torch::Tensor first;
    std::mt19937 random(1);
    for (int order = 0; order < 5; ++order) {
      const torch::Tensor sums = torch::zeros({1000}, torch::kLong), others = sums.clone(),
                          gradient = torch::empty({1000});
      for (size_t i = 0; i < terms.size(); ++i)
        exact.add(terms[i], i % 3 == 0 ? sums : others, /*replaces=*/i < 2);
      exact.finish(sums + others, gradient);
      if (order == 0) first = gradient;
      EXPECT_TRUE(gradient.equal(first));
      std::ranges::shuffle(terms, random);
    }
    EXPECT_LE((first - expected).abs().max().item<double>(), 2.5e-7);  // rounded once
    EXPECT_TRUE(first.equal(expected.to(torch::kFloat)));
  }
}

TEST(ExactSum, RoundsToUnits) {
  ExactSum exact(1, 1);
  for (const double scale : {1.0, 65536.0}) {
    exact.begin(scale, 1);
    const double unit = std::ldexp(scale, -50);
    const torch::Tensor x =
        torch::tensor({0.0, -0.0, 1.0, -3.0, 0.25, 0.75, -0.75, 1e-30, 5e-42, 0x1p60}) * unit;
    const torch::Tensor units = exact.units(x.to(torch::kFloat));
    EXPECT_TRUE(units.equal(torch::tensor({0l, 0l, 1l, -3l, 0l, 1l, -1l, 0l, 0l, 1l << 60})));
    EXPECT_TRUE(std::isfinite(exact.square_sum({}).sum().item<double>()));
  }
}

TEST(ExactSum, TellsWhatIsBeyondTheGrid) {
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY), 1e30, 0x1p10, 0x1p8}) {
    ExactSum exact(1, 4);
    exact.begin(1, 2);
    exact.units(torch::tensor({1.0, 0x1p9}).to(torch::kFloat));           // 2^61 / 2 units are 2^10
    exact.units_of_parts(torch::tensor({1.0, 0x1p7}).to(torch::kFloat));  // 2^61 / 8 units
    EXPECT_TRUE(std::isfinite(exact.square_sum({}).sum().item<double>()));
    bad == 0x1p8 ? exact.units_of_parts(torch::tensor({bad}).to(torch::kFloat))
                 : exact.units(torch::tensor({1.0, bad}).to(torch::kFloat));
    EXPECT_TRUE(std::isinf(exact.square_sum({}).sum().item<double>())) << bad;
    exact.begin(1, 2);
    EXPECT_EQ(exact.square_sum({}).sum().item<double>(), 0);
  }
}

TEST(ExactSum, AddsSparseRows) {
  ExactSum exact(1, 1);
  exact.begin(1, 1);
  const torch::Tensor rows = torch::tensor({2l, 0l, 2l}).unsqueeze(0),
                      sparse =
                          at::sparse_coo_tensor(rows, torch::tensor({{1.f}, {2.f}, {3.f}}), {4, 1});
  EXPECT_TRUE(exact.units(sparse).equal(torch::tensor({{2l << 50}, {0l}, {4l << 50}, {0l}})));
}

TEST(ExactSum, AddsSquaresInAnyOrder) {
  ExactSum exact(1, 1);
  exact.begin(1, 1);
  torch::manual_seed(1);
  const torch::Tensor x =
      (torch::randn({5000}) * torch::exp(torch::randn({5000}) * 5 - 8)).clamp(-0x1p12, 0x1p12);
  x.narrow(0, 2000, 3000).fill_(0x1.fffffep11);  // their squares have a sum above 2^35
  x.narrow(0, 0, 2000).div_(7);
  const double whole = exact.square_sum({x}).sum().item<double>();
  EXPECT_NEAR(whole, x.to(torch::kDouble).square().sum().item<double>(), whole * 1e-12);
  for (const int64_t at : {1, 7, 1024, 4999}) {
    const auto parts =
        exact.square_sum({x.narrow(0, at, 5000 - at)}) + exact.square_sum({x.narrow(0, 0, at)});
    EXPECT_EQ(parts.sum().item<double>(), whole) << at;
  }
}

}  // namespace
}  // namespace anymesh
