#include "framework/kernels/vocabulary_rows.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

namespace anymesh {
namespace {

constexpr int64_t kRows = 5;

struct Exact {
  torch::Tensor logits, log_sums, softmax;  // float64; of the real columns
};
Exact exact_of(const torch::Tensor& logits, int64_t real) {
  const torch::Tensor x = logits.narrow(1, 0, real).to(torch::kDouble);
  return {x, at::logsumexp(x, -1), at::softmax(x, -1)};
}

void expect_close(const torch::Tensor& got, const torch::Tensor& expected, double tolerance) {
  EXPECT_TRUE(at::allclose(got.to(torch::kDouble), expected, tolerance, tolerance)) << got << "\n"
                                                                                    << expected;
}

class VocabularyRows : public testing::TestWithParam<torch::Dtype> {
 protected:
  torch::Tensor logits(int64_t columns) {
    at::manual_seed(1);
    return (at::randn({kRows, columns}) * 5).to(GetParam());
  }
  double rounding() const { return GetParam() == torch::kFloat ? 1e-6 : 5e-3; }
};

TEST_P(VocabularyRows, SumsAreThoseOfTheRealColumns) {
  for (const auto& [columns, real] : {std::pair<int64_t, int64_t>{16, 16},
                                      {40, 33},
                                      {7, 7},
                                      {1000, 992},
                                      {1001, 1001},
                                      {20, 1}}) {
    const torch::Tensor x = logits(columns);
    const Exact exact = exact_of(x, real);
    const RowSums got = row_sums(x, real);
    expect_close(got.maxima, exact.logits.amax(-1), 0);
    expect_close(got.maxima + got.sums.log(), exact.log_sums,
                 2e-6);  // sums are fp32's, whatever the logits are
  }
}

TEST_P(VocabularyRows, NoColumnsSumToNothing) {
  const RowSums got = row_sums(logits(24), 0);
  EXPECT_TRUE(at::equal(got.maxima, at::full({kRows}, -INFINITY)));
  EXPECT_TRUE(at::equal(got.sums, at::zeros({kRows})));
}

TEST_P(VocabularyRows, GradientIsSoftmaxMinusTarget) {
  for (const auto& [columns, real] :
       {std::pair<int64_t, int64_t>{16, 16}, {40, 33}, {9, 5}, {1000, 992}}) {
    const torch::Tensor x = logits(columns), scales = at::rand({kRows}) + 0.5;
    const torch::Tensor targets = torch::tensor({0, -1, int(real) - 1, 2, -1}, torch::kLong);
    const Exact exact = exact_of(x, real);
    torch::Tensor expected = exact.softmax.clone();
    for (const int64_t row : {0, 2, 3}) expected[row][targets[row].item<int64_t>()] -= 1;
    expected = at::constant_pad_nd(expected * scales.unsqueeze(-1), {0, columns - real});
    expect_close(logits_gradient(x, real, exact.log_sums.to(torch::kFloat), targets, scales),
                 expected, rounding());
  }
}

TEST_P(VocabularyRows, KeepsNans) {
  torch::Tensor x = logits(50);
  x[1][3] = NAN;
  x[2][49] = NAN;
  const torch::Tensor sums = row_sums(x, 50).sums;
  EXPECT_TRUE(at::equal(sums.isnan(), torch::tensor({false, true, true, false, false})));
}

INSTANTIATE_TEST_SUITE_P(, VocabularyRows,
                         testing::Values(torch::kFloat, torch::kBFloat16, torch::kHalf),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace anymesh
