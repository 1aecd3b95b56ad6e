#include "framework/zero/gradient_sum.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace anymesh {
namespace {

constexpr int64_t kTableRows = 50, kWidth = 8;

// Returns the gradient of a lookup, sparse or not.
torch::Tensor gradient(const torch::Tensor& ids, const torch::Tensor& values, bool sparse) {
  const torch::Tensor rows = at::sparse_coo_tensor(ids.unsqueeze(0), values, {kTableRows, kWidth},
                                                   values.options().layout(torch::kSparse))
                                 .coalesce();
  return sparse ? rows : rows.to_dense();
}

// Compares two sums of the same gradients, through steps with other rows each. The third has none.
void expect_same_sums(bool alone, torch::Dtype dtype) {
  torch::manual_seed(1);
  const torch::Tensor sums = at::zeros({kTableRows * kWidth}),
                      expected = at::zeros({kTableRows * kWidth});
  GradientSum rows(sums, alone), dense(expected, alone);
  for (int step = 0; step < 5; ++step) {
    for (int micro_batch = 0; micro_batch < 2 && step != 2; ++micro_batch) {
      const torch::Tensor ids = at::randint(kTableRows, {12}, torch::kLong),
                          values = at::randn({12, kWidth}).to(dtype);
      rows.add(gradient(ids, values, true));
      dense.add(gradient(ids, values, false));
    }
    for (GradientSum* sum : {&rows, &dense}) sum->finish();
    EXPECT_TRUE(at::equal(sums, expected)) << "step " << step;
    EXPECT_EQ(step == 2, at::count_nonzero(sums).item<int64_t>() == 0);

    const torch::Tensor a = at::ones({kTableRows * kWidth}), b = at::ones({kTableRows * kWidth});
    rows.add_to(a);
    dense.add_to(b);
    EXPECT_TRUE(at::equal(a, b)) << "step " << step;
    if (!alone) {  // an all-reduce
      sums.add_(1);
      expected.add_(1);
      const torch::Tensor reduced = at::zeros({kTableRows * kWidth});
      rows.add_to(reduced);
      EXPECT_TRUE(at::equal(reduced, expected)) << "step " << step;
    }
    for (GradientSum* sum : {&rows, &dense}) sum->expire();
  }
}

TEST(GradientSum, RowsGiveWhatWholeGradientsDo) {
  expect_same_sums(true, torch::kFloat);
  expect_same_sums(true, torch::kBFloat16);
}

TEST(GradientSum, ForgetsWhatOthersAddedToOtherRows) { expect_same_sums(false, torch::kFloat); }

TEST(GradientSum, LeavesOtherRowsAlone) {
  const torch::Tensor sums = at::zeros({kTableRows * kWidth});
  GradientSum sum(sums, true);
  const torch::Tensor ids = at::full({1}, 7, torch::kLong), values = at::ones({1, kWidth});
  sum.add(gradient(ids, values, true));
  sum.finish();
  sums[0] = 3;  // nobody would do this: it must not be looked at
  torch::Tensor whole = at::zeros({kTableRows * kWidth});
  sum.add_to(whole);
  EXPECT_EQ(whole[0].item<float>(), 0);
  EXPECT_EQ(whole.sum().item<float>(), kWidth);
}

// A token comes in a micro-batch more often than bf16 could count.
TEST(GradientSum, CountsAFrequentRowInBf16) {
  const torch::Tensor ids = at::full({1, 2000}, 3, torch::kLong),
                      values = at::ones({2000, kWidth}, torch::kBFloat16),
                      gradient = at::sparse_coo_tensor(ids, values, {kTableRows, kWidth},
                                                       values.options().layout(torch::kSparse)),
                      sums = at::zeros({kTableRows * kWidth});
  GradientSum sum(sums, /*alone=*/true);
  sum.add(gradient);
  sum.finish();
  EXPECT_TRUE(at::equal(sums.view({kTableRows, kWidth})[3], at::full({kWidth}, 2000.f)));
  EXPECT_EQ(coalesced(gradient).scalar_type(), torch::kBFloat16);
}

}  // namespace
}  // namespace anymesh
