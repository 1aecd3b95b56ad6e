// Products whose bits do not depend on the rows, columns and threads of a call.
#include "framework/kernels/fixed_order.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace anymesh {
namespace {

class FixedOrder : public testing::TestWithParam<torch::Dtype> {
 public:
  torch::Tensor random(std::vector<int64_t> shape) const {
    return torch::randn(shape).to(GetParam());
  }
};

TEST_P(FixedOrder, LeavesTheRowsOutOfIt) {
  const torch::Tensor x = random({37, 48}), weight = random({150, 48}), bias = random({150}),
                      dy = random({37, 150});
  const torch::Tensor y = fixed_y(x, weight, bias), dw = fixed_dw(dy, x),
                      dx = fixed_dx(dy.narrow(1, 0, 64), weight.narrow(0, 0, 64));
  for (const int64_t columns : {1, 2, 5, 15, 16, 17, 31, 48, 64, 65, 100, 149}) {
    for (const int64_t first : {int64_t{0}, 150 - columns}) {
      const auto part = [&](const torch::Tensor& t, int64_t dim) {
        return t.narrow(dim, first, columns);
      };
      EXPECT_TRUE(fixed_y(x, part(weight, 0), part(bias, 0)).equal(part(y, 1))) << columns;
      EXPECT_TRUE(fixed_dw(part(dy, 1), x).equal(part(dw, 0))) << columns;
    }
  }
  for (const int64_t rows : {1, 2, 3, 8, 9, 36}) {
    EXPECT_TRUE(
        fixed_y(x.narrow(0, 37 - rows, rows), weight, bias).equal(y.narrow(0, 37 - rows, rows)));
    EXPECT_TRUE(fixed_dx(dy.narrow(0, 0, rows).narrow(1, 0, 64), weight.narrow(0, 0, 64))
                    .equal(dx.narrow(0, 0, rows)));
  }
}

// The sums of t ranks, added as a tree, are the whole.
TEST_P(FixedOrder, AddsBlocksAsATree) {
  const auto tree = [](std::vector<torch::Tensor> parts) {
    for (size_t step = 1; step < parts.size(); step *= 2)
      for (size_t i = 0; i < parts.size(); i += 2 * step) parts[i] = parts[i] + parts[i + step];
    return parts[0];
  };
  for (const auto& [rows, inner, columns] :
       {std::tuple(33, 128, 80), {5, 8 * 72, 24}, {3, 8 * 4096, 16}, {300, 8 * 20, 200}}) {
    const torch::Tensor x = random({rows, inner}), weight = random({columns, inner}),
                        w = random({inner, columns});
    const torch::Tensor y = fixed_y_in_blocks(x, weight, 8), dx = fixed_dx_in_blocks(x, w, 8, 2);
    for (const int64_t t : {1, 2, 4, 8}) {
      const auto cut = [&](const torch::Tensor& a, int64_t dim, int64_t parts, int64_t rank) {
        return a.unflatten(dim, {parts, t, -1})
            .select(dim + 1, rank)
            .flatten(dim, dim + 1)
            .contiguous();
      };
      std::vector<torch::Tensor> of_y, of_dx;
      for (int64_t r = 0; r < t; ++r) {
        of_y.push_back(fixed_y_in_blocks(cut(x, 1, 1, r), cut(weight, 1, 1, r), 8 / t));
        of_dx.push_back(fixed_dx_in_blocks(cut(x, 1, 2, r), cut(w, 0, 2, r), 8 / t, 2));
      }
      EXPECT_TRUE(tree(of_y).equal(y)) << inner << " over " << t;
      EXPECT_TRUE(tree(of_dx).equal(dx)) << inner << " over " << t;
    }
    const torch::Tensor exact = x.to(torch::kDouble).mm(weight.to(torch::kDouble).t());
    EXPECT_LT((y - exact).abs().max().item<double>(), 1e-5 * std::sqrt(inner) * 10);
  }
}

TEST_P(FixedOrder, LeavesThreadsOutOfIt) {
  const torch::Tensor x = random({257, 96}), weight = random({320, 96}), dy = random({257, 320});
  const auto all = [&] {
    return std::vector{fixed_y(x, weight, {}), fixed_dw(dy, x),
                       fixed_dx_in_blocks(dy, weight, 4, 1), fixed_row_sums(dy, 8)};
  };
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = all();
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    const auto several = all();
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(several[i].equal(one[i])) << threads;
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(All, FixedOrder,
                         testing::Values(torch::kFloat, torch::kBFloat16, torch::kHalf),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace anymesh
