#include "framework/kernels/norm.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace anymesh {
namespace {

constexpr double kEpsilon = 1e-5;

torch::Tensor plain_norm(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
  return bias.defined() ? at::layer_norm(x, {x.size(-1)}, weight, bias, kEpsilon)
                        : at::rms_norm(x, {x.size(-1)}, weight, kEpsilon);
}

// Inputs x, y, weight and bias of a dtype, and the gradients of the sum and of the norm.
struct NormCase {
  NormCase(at::IntArrayRef shape, bool has_bias, torch::Dtype dtype) {
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
    inputs = {random(shape) * 3 + 1, random(shape), random({shape.back()})};
    if (has_bias) inputs.push_back(random({shape.back()}));
    gradients = {random(shape), random(shape)};
  }

  // Returns {sum, norm, gradients of the inputs}, or {norm, ...} if y is not taken.
  std::vector<torch::Tensor> ours(bool takes_y) const {
    const auto leaves = leaves_of(inputs);
    const NormParams params{leaves[2], leaves.size() > 3 ? leaves[3] : torch::Tensor(), kEpsilon};
    if (!takes_y) return with_gradients({norm(leaves[0], params)}, leaves, takes_y);
    const auto [sum, normed] = added_norm(leaves[0], leaves[1], params);
    return with_gradients({sum, normed}, leaves, takes_y);
  }
  std::vector<torch::Tensor> exact(bool takes_y) const {
    std::vector<torch::Tensor> wide;
    for (const torch::Tensor& x : inputs) wide.push_back(x.to(torch::kDouble));
    const auto leaves = leaves_of(wide);
    const torch::Tensor bias = leaves.size() > 3 ? leaves[3] : torch::Tensor();
    const torch::Tensor sum = takes_y ? leaves[0] + leaves[1] : leaves[0];
    const torch::Tensor normed = plain_norm(sum, leaves[2], bias);
    return takes_y ? with_gradients({sum, normed}, leaves, takes_y)
                   : with_gradients({normed}, leaves, takes_y);
  }

  std::vector<torch::Tensor> inputs, gradients;

 private:
  static std::vector<torch::Tensor> leaves_of(const std::vector<torch::Tensor>& values) {
    std::vector<torch::Tensor> leaves;
    for (const torch::Tensor& x : values) leaves.push_back(x.detach().clone().requires_grad_());
    return leaves;
  }
  std::vector<torch::Tensor> with_gradients(std::vector<torch::Tensor> outputs,
                                            const std::vector<torch::Tensor>& leaves,
                                            bool takes_y) const {
    std::vector<torch::Tensor> of_outputs;
    for (size_t i = 0; i < outputs.size(); ++i)
      of_outputs.push_back(gradients[i].to(outputs[i].dtype()));
    torch::autograd::backward(outputs, of_outputs);
    for (size_t i = 0; i < leaves.size(); ++i)
      if (takes_y || i != 1) outputs.push_back(leaves[i].grad());
    return outputs;
  }
};

void expect_close(const std::vector<torch::Tensor>& ours, const std::vector<torch::Tensor>& exact,
                  double tolerance) {
  ASSERT_EQ(ours.size(), exact.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), exact[i].sizes());
    const double scale = exact[i].abs().max().item<double>(),
                 off = (ours[i].to(torch::kDouble) - exact[i]).abs().max().item<double>();
    EXPECT_LE(off, tolerance * scale) << "value " << i;
  }
}

TEST(Norm, MeetsFloat64) {
  at::manual_seed(1);
  for (const bool has_bias : {true, false})
    for (const bool takes_y : {true, false})
      for (const int64_t rows : {1, 63, 64, 65, 300})
        for (const int64_t h : {16, 48, 384}) {
          SCOPED_TRACE(testing::Message() << has_bias << takes_y << " " << rows << " x " << h);
          const NormCase plain({rows, h}, has_bias, torch::kFloat);
          expect_close(plain.ours(takes_y), plain.exact(takes_y), 2e-6);
          for (const auto& [dtype, rounding] :
               {std::pair(torch::kBFloat16, 1e-2), {torch::kHalf, 2e-3}}) {
            const NormCase half({rows, h}, has_bias, dtype);
            expect_close(half.ours(takes_y), half.exact(takes_y), rounding);
          }
        }
}

// The kernel does not take float64, or rows that are no whole vectors.
TEST(Norm, OthersTakeLibTorchsOperators) {
  at::manual_seed(2);
  const NormCase wide({2, 3, 32}, true, torch::kDouble), odd({5, 21}, false, torch::kFloat);
  expect_close(wide.ours(true), wide.exact(true), 1e-15);
  expect_close(odd.ours(false), odd.exact(false), 2e-6);
}

// Without a kernel, sums over many rows of one sign must not be taken in half precision.
TEST(Norm, SumsManyRowsOfHalfPrecision) {
  at::manual_seed(3);
  for (const torch::Dtype dtype : {torch::kHalf, torch::kBFloat16}) {
    NormCase many({8000, 40}, true, dtype);
    for (torch::Tensor& gradient : many.gradients) gradient = at::ones_like(gradient);
    expect_close(many.ours(false), many.exact(false), dtype == torch::kHalf ? 2e-3 : 1e-2);
  }
}

TEST(Norm, IsThatOfTheRoundedSum) {
  at::manual_seed(3);
  const NormCase c({40, 64}, true, torch::kBFloat16);
  const NormParams params{c.inputs[2], c.inputs[3], kEpsilon};
  const auto [sum, normed] = added_norm(c.inputs[0], c.inputs[1], params);
  EXPECT_TRUE(sum.equal(c.inputs[0] + c.inputs[1]));
  EXPECT_TRUE(normed.equal(norm(sum, params)));
}

TEST(Norm, NoNumberOfThreadsChangesABit) {
  at::manual_seed(4);
  const NormCase c({1000, 64}, true, torch::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = c.ours(true);
  for (const int threads : {2, 3, 5}) {
    at::set_num_threads(threads);
    const auto more = c.ours(true);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(more[i].equal(one[i])) << threads << " " << i;
  }
  at::set_num_threads(before);
}

// A backward may have a gradient for only one of the two outputs. The last layer uses only the sum,
// say, and nothing may read a norm.
TEST(Norm, TakesOneGradient) {
  at::manual_seed(5);
  const NormCase c({7, 32}, true, torch::kFloat);
  const auto gradient = [&](bool of_sum, bool ours) {
    const torch::Tensor x = c.inputs[0].clone().requires_grad_();
    const NormParams params{c.inputs[2], c.inputs[3], kEpsilon};
    const torch::Tensor plain_sum = x + c.inputs[1];
    const auto [sum, normed] =
        ours ? added_norm(x, c.inputs[1], params)
             : SumAndNorm{plain_sum, plain_norm(plain_sum, c.inputs[2], c.inputs[3])};
    torch::autograd::backward({of_sum ? sum : normed}, {c.gradients[0]});
    return x.grad();
  };
  for (const bool of_sum : {true, false})
    EXPECT_TRUE(gradient(of_sum, true).allclose(gradient(of_sum, false), 1e-5, 1e-5)) << of_sum;
}

TEST(Norm, KeepsNans) {
  const torch::Tensor x = torch::full({3, 16}, NAN), one = torch::ones({16});
  EXPECT_TRUE(norm(x, {one, {}, kEpsilon}).isnan().all().item<bool>());
}

}  // namespace
}  // namespace anymesh
