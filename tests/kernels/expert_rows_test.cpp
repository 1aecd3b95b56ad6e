// Compares the kernels of experts with LibTorch's operators.
#include "framework/kernels/expert_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "framework/kernels/grouped_linear.h"

namespace anymesh {
namespace {

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.numel() == 0) return 0;
  const torch::Tensor wide = b.to(torch::kDouble);
  return ((a.to(torch::kDouble) - wide).abs().max() / wide.abs().max().clamp_min(1e-30))
      .item<double>();
}

double tolerance(torch::Dtype dtype) {
  return dtype == torch::kDouble ? 1e-14 : dtype == torch::kFloat ? 1e-5 : 1e-2;
}

struct Rows {
  torch::Tensor x, weights, order, places;
};

Rows make_rows(int64_t tokens, int64_t chosen, int64_t h, torch::Dtype dtype) {
  at::manual_seed(1);
  const torch::Tensor order = at::randperm(tokens * chosen, torch::kLong);
  return {at::randn({tokens, h}, dtype), at::rand({tokens, chosen}, dtype), order,
          at::argsort(order).view({tokens, chosen})};
}

class ExpertRows : public testing::TestWithParam<torch::Dtype> {};

TEST_P(ExpertRows, TheWayToTheExpertsAndBack) {
  for (const int64_t h : {1, 16, 37}) {
    const auto [x, weights, order, places] = make_rows(9, 3, h, GetParam());
    const torch::Tensor rows = rows_of_choices(x, order, 3);
    for (int64_t i = 0; i < 27; ++i) EXPECT_TRUE(rows[i].equal(x[order[i].item<int64_t>() / 3]));
    const torch::Tensor chosen = rows.index_select(0, places.flatten()).view({9, 3, h});
    EXPECT_LT(difference(sum_of_choices(rows, places, weights),
                         (chosen.to(torch::kDouble) * weights.unsqueeze(2)).sum(1)),
              tolerance(GetParam()));
    EXPECT_LT(difference(sum_of_choices(rows, places, {}), chosen.to(torch::kDouble).sum(1)),
              tolerance(GetParam()));
  }
}

TEST_P(ExpertRows, GradientsAreAutogradsOwn) {
  for (const int64_t h : {1, 16, 37}) {
    const auto [x, weights, order, places] = make_rows(9, 3, h, GetParam());
    const torch::Tensor rows = rows_of_choices(x, order, 3), dy = at::randn_like(x);
    const torch::Tensor r = rows.to(torch::kDouble).requires_grad_(),
                        w = weights.to(torch::kDouble).requires_grad_();
    (r.index_select(0, places.flatten()).view({9, 3, h}) * w.unsqueeze(2))
        .sum(1)
        .backward(dy.to(torch::kDouble));
    const auto [drows, dweights] = gradients_of_sum(dy, rows, places, weights);
    EXPECT_LT(difference(drows, r.grad()), tolerance(GetParam()));
    EXPECT_LT(difference(dweights, w.grad()), tolerance(GetParam()));
  }
}

// The products that a GPU has, here by LibTorch's fallback.
void expect_at_once_is_the_same(const torch::Tensor& x, const std::vector<torch::Tensor>& weights,
                                const RowGroups& groups, const torch::Tensor& dy) {
  torch::autograd::variable_list all{x};
  all.insert(all.end(), weights.begin(), weights.end());
  const torch::Tensor y = grouped_linear(x, weights, groups),
                      at_once = grouped_linear_at_once(x, weights, groups);
  const auto expected = torch::autograd::grad({y}, all, {dy}),
             gradients = torch::autograd::grad({at_once}, all, {dy});
  EXPECT_LT(difference(at_once, y), tolerance(y.scalar_type()));
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LT(difference(gradients[i], expected[i]), tolerance(y.scalar_type()));
}

// Groups of odd and even sizes, and two without rows. Sides are multiples of 16, for blocks, or
// not.
TEST_P(ExpertRows, GroupedLinearIsALinearForEachGroup) {
  const std::vector<int64_t> counts{3, 0, 8, 1, 130, 0};
  const RowGroups groups{counts, torch::tensor(counts).cumsum(0).to(torch::kInt)};
  for (const int64_t n : {16, 48, 5}) {
    for (const size_t matrices : {1, 2}) {
      at::manual_seed(2);
      const int64_t k = n == 5 ? 7 : 32, rows = 142;
      const torch::Tensor x = at::randn({rows, k}, GetParam()).requires_grad_(),
                          wide_x = x.detach().to(torch::kDouble).requires_grad_();
      std::vector<torch::Tensor> weights, wide, outputs;
      for (size_t i = 0; i < matrices; ++i) {
        weights.push_back((at::randn({6, n, k}, GetParam()) / 4).requires_grad_());
        wide.push_back(weights[i].detach().to(torch::kDouble).requires_grad_());
        std::vector<torch::Tensor> each;
        int64_t first = 0;
        for (size_t e = 0; e < counts.size(); ++e) {
          each.push_back(
              at::linear(wide_x.narrow(0, first, counts[e]), wide[i][static_cast<int64_t>(e)]));
          first += counts[e];
        }
        outputs.push_back(at::cat(each));
      }
      const torch::Tensor y = grouped_linear(x, weights, groups), expected = at::cat(outputs, 1),
                          dy = at::randn_like(y);
      if (n == 16 && GetParam() != torch::kDouble)
        expect_at_once_is_the_same(x, weights, groups, dy);
      y.backward(dy);
      expected.backward(dy.to(torch::kDouble));
      const double most = tolerance(GetParam()) * (GetParam() == torch::kDouble ? 10 : 1);
      EXPECT_LT(difference(y, expected), most);
      EXPECT_LT(difference(x.grad(), wide_x.grad()), most);
      for (size_t i = 0; i < matrices; ++i) {
        EXPECT_LT(difference(weights[i].grad(), wide[i].grad()), most);
        EXPECT_EQ(weights[i].grad()[1].abs().max().item<double>(), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExpertRows,
                         testing::Values(torch::kDouble, torch::kFloat, torch::kBFloat16,
                                         torch::kHalf));

}  // namespace
}  // namespace anymesh
