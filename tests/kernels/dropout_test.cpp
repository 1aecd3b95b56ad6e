#include "framework/kernels/dropout.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace anymesh {
namespace {

const DropoutContext kContext{.seed = 42, .samples = {7, 1'000'000'000'000}};
const DropoutStream kStream{3, DropoutSite::MlpOutput};

TEST(Dropout, DropsTheShareItShouldAndScalesTheRest) {
  const torch::Tensor y = dropout(torch::ones({2, 500, 400}), 0.3, kContext, kStream);
  EXPECT_NEAR(y.eq(0).to(torch::kDouble).mean().item<double>(), 0.3, 0.005);
  EXPECT_TRUE(y.masked_select(y.ne(0)).allclose(torch::full({1}, 1 / 0.7f)));
}

TEST(Dropout, MasksOfSamplesLayersSitesAndSeedsDiffer) {
  const torch::Tensor x = torch::ones({2, 4096});
  const torch::Tensor y = dropout(x, 0.5, kContext, kStream);
  const auto agreement = [&](const torch::Tensor& other) {
    return y[0].eq(0).eq(other.eq(0)).to(torch::kDouble).mean().item<double>();
  };
  EXPECT_EQ(agreement(dropout(x, 0.5, kContext, kStream)[0]), 1);
  EXPECT_NEAR(agreement(y[1]), 0.5, 0.05);
  EXPECT_NEAR(agreement(dropout(x, 0.5, {43, kContext.samples}, kStream)[0]), 0.5, 0.05);
  EXPECT_NEAR(agreement(dropout(x, 0.5, kContext, {4, DropoutSite::MlpOutput})[0]), 0.5, 0.05);
  EXPECT_NEAR(agreement(dropout(x, 0.5, kContext, {3, DropoutSite::AttentionOutput})[0]), 0.5,
              0.05);
}

TEST(Dropout, APartDrawsWhatTheWholeDraws) {
  const torch::Tensor x = torch::rand({2, 7, 1003}) + 1;
  const torch::Tensor whole = dropout(x, 0.2, kContext, kStream);
  for (const auto& [first, count] : {std::pair{0, 7}, {3, 2}, {6, 1}}) {
    const torch::Tensor part =
        dropout(x.narrow(1, first, count), 0.2, kContext, kStream, first * 1003);
    EXPECT_TRUE(torch::equal(part, whole.narrow(1, first, count))) << first;
  }
}

TEST(Dropout, ThreadsAndBatchingChangeNothing) {
  const torch::Tensor x = torch::rand({2, 99'999});
  const torch::Tensor expected = dropout(x, 0.1, kContext, kStream);
  at::set_num_threads(3);
  EXPECT_TRUE(torch::equal(dropout(x, 0.1, kContext, kStream), expected));
  at::set_num_threads(1);
  EXPECT_TRUE(torch::equal(dropout(x.narrow(0, 1, 1), 0.1, {42, {kContext.samples[1]}}, kStream)[0],
                           expected[1]));
}

TEST(Dropout, BackwardUsesTheForwardMask) {
  torch::Tensor x = torch::ones({2, 1000}).requires_grad_();
  const torch::Tensor y = dropout(x, 0.4, kContext, kStream);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
}

TEST(Dropout, EvaluationDropsNothing) {
  const torch::Tensor x = torch::ones({2, 10});
  EXPECT_TRUE(dropout(x, 0.5, {42, {}}, kStream).is_same(x));
}

}  // namespace
}  // namespace anymesh
