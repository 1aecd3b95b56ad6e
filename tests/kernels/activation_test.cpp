#include "framework/kernels/activation.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace anymesh {
namespace {

// Compares values and gradients of both from the same input, the plain one in float64.
void expect_close(const std::function<torch::Tensor(const torch::Tensor&)>& ours,
                  const std::function<torch::Tensor(const torch::Tensor&)>& plain,
                  const torch::Tensor& input, double tolerance) {
  const torch::Tensor x = input.clone().requires_grad_(),
                      exact = input.to(torch::kDouble).requires_grad_();
  const torch::Tensor y = ours(x), expected = plain(exact);
  const torch::Tensor weight = at::randn(y.sizes()).to(x.dtype());
  torch::autograd::backward({y}, {weight});
  torch::autograd::backward({expected}, {weight.to(torch::kDouble)});
  EXPECT_TRUE(at::allclose(y.to(torch::kDouble), expected, tolerance, tolerance));
  EXPECT_TRUE(at::allclose(x.grad().to(torch::kDouble), exact.grad(), tolerance, tolerance));
}

torch::Tensor plain_gelu(const torch::Tensor& x) { return at::gelu(x, "tanh"); }
torch::Tensor plain_swiglu(const torch::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

TEST(Activation, Gelu) {
  at::manual_seed(1);
  for (const int64_t n : {1, 15, 16, 17, 5000, 100003}) {
    const torch::Tensor x = at::randn({n}) * 4;
    expect_close(gelu_tanh, plain_gelu, x, 2e-6);
    expect_close(gelu_tanh, plain_gelu, x.to(torch::kBFloat16), 1e-2);
    expect_close(gelu_tanh, plain_gelu, x.to(torch::kHalf), 2e-3);
  }
  const torch::Tensor far =
      torch::tensor({-1e30, -200.0, -20.0, -0.0, 0.0, 20.0, 200.0}).to(torch::kFloat);
  EXPECT_TRUE(at::allclose(gelu_tanh(far), plain_gelu(far)));
}

TEST(Activation, Swiglu) {
  at::manual_seed(1);
  for (const int64_t f : {1, 16, 21, 512, 40000}) {
    const torch::Tensor x = at::randn({2, 3, 2 * f}) * 3;
    expect_close(swiglu, plain_swiglu, x, 2e-6);
    expect_close(swiglu, plain_swiglu, x.to(torch::kBFloat16), 1e-2);
    expect_close(swiglu, plain_swiglu, x.to(torch::kHalf), 2e-3);
  }
}

TEST(Activation, OtherTypesTakeLibTorchsOperators) {
  at::manual_seed(1);
  expect_close(gelu_tanh, plain_gelu, at::randn({33}, torch::kDouble), 1e-15);
  expect_close(swiglu, plain_swiglu, at::randn({3, 10}, torch::kDouble), 1e-15);
}

// NaNs and infinities of a training that diverges must arrive at the loss.
TEST(Activation, KeepsNans) {
  const torch::Tensor x = torch::full({20}, NAN);
  EXPECT_TRUE(gelu_tanh(x).isnan().all().item<bool>());
  EXPECT_TRUE(gelu_tanh(x.to(torch::kBFloat16)).isnan().all().item<bool>());
  EXPECT_TRUE(swiglu(x).isnan().all().item<bool>());
}

}  // namespace
}  // namespace anymesh
