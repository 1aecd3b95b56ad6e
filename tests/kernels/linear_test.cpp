#include "framework/kernels/linear.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace anymesh {
namespace {

torch::Tensor random(at::IntArrayRef sizes, torch::Dtype dtype = torch::kBFloat16) {
  return at::randn(sizes).to(dtype);
}

// Compares values and gradients with float64. Each sum must be rounded once.
void expect_close(at::IntArrayRef shape, int64_t n, bool has_bias,
                  decltype(blocked_linear)& linear = blocked_linear,
                  torch::Dtype dtype = torch::kBFloat16) {
  SCOPED_TRACE(testing::Message() << shape << " x " << n << (has_bias ? " and bias" : ""));
  const auto exact = [](const torch::Tensor& x) {
    return x.detach().to(torch::kDouble).requires_grad_();
  };
  const int64_t k = shape.back();
  const torch::Tensor x = random(shape, dtype).requires_grad_(),
                      w = random({n, k}, dtype).requires_grad_(),
                      b = random({n}, dtype).requires_grad_();
  const torch::Tensor x64 = exact(x), w64 = exact(w), b64 = exact(b);
  const torch::Tensor y = linear(x, w, has_bias ? b : torch::Tensor()),
                      y64 = at::linear(x64, w64, has_bias ? b64 : torch::Tensor());
  ASSERT_EQ(y.sizes(), y64.sizes());
  const torch::Tensor dy = random(y.sizes(), dtype);
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({y64}, {dy.to(torch::kDouble)});

  const double rounding = dtype == torch::kFloat  ? 1e-6
                          : dtype == torch::kHalf ? 1.0 / 2048
                                                  : 1.0 / 256;
  const auto expect = [rounding](const torch::Tensor& got, const torch::Tensor& wanted,
                                 int64_t products) {
    const double sums = 1e-6 * static_cast<double>(products);
    EXPECT_TRUE(at::allclose(got.to(torch::kDouble), wanted, rounding, sums));
  };
  expect(y, y64, k);
  expect(x.grad(), x64.grad(), n);
  expect(w.grad(), w64.grad(), x.numel() / k);
  if (has_bias) expect(b.grad(), b64.grad(), x.numel() / k);
}

// The types that may run in blocks.
class Blocks : public testing::TestWithParam<torch::Dtype> {
 protected:
  void expect_close_to_float64(at::IntArrayRef shape, int64_t n, bool has_bias) {
    expect_close(shape, n, has_bias, blocked_linear, GetParam());
  }
};

TEST_P(Blocks, MeetFloat64) {
  at::manual_seed(1);
  expect_close_to_float64({2, 33, 64}, 96, true);
  for (const int64_t m : {2, 64, 70, 90, 258})
    for (const int64_t n : {16, 64, 80, 208})
      for (const int64_t k : {16, 64, 96, 400}) expect_close_to_float64({m, k}, n, m == 70);
}

// There is more than one block of rows, columns and products each way, and the last ones are
// smaller.
TEST_P(Blocks, AreMany) {
  at::manual_seed(2);
  expect_close_to_float64({600, 80}, 144, true);
  expect_close_to_float64({40, 4160}, 96, false);
  expect_close_to_float64({4200, 16}, 48, true);
}

// The longest sums, of the values and of either gradient, are taken a part at a time.
TEST_P(Blocks, SumLong) {
  at::manual_seed(8);
  expect_close_to_float64({40, 8480}, 96, true);
  expect_close_to_float64({40, 16}, 8480, false);
  expect_close_to_float64({8480, 16}, 48, true);
}

// Outputs of 2 MiB and more go past the caches.
TEST_P(Blocks, GoPastCaches) {
  at::manual_seed(9);
  expect_close_to_float64({2050, 32}, 528, true);
  expect_close_to_float64({528, 2064}, 32, false);
}

TEST(Linear, WidenedMeetsFloat64) {
  at::manual_seed(10);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const bool bias : {false, true}) {
      expect_close({2, 33, 64}, 96, bias, widened_linear, dtype);
      expect_close({3, 20}, 7, bias, widened_linear, dtype);
    }
  }
}

TEST_P(Blocks, NoNumberOfThreadsChangesABit) {
  if (!runs_in_blocks(GetParam())) GTEST_SKIP() << "this CPU multiplies it otherwise";
  at::manual_seed(7);
  for (const int64_t n : {208, 8320}) {
    const torch::Tensor dy = random({300, n}, GetParam());
    const torch::Tensor x = random({300, 96}, GetParam()).requires_grad_(),
                        w = random({n, 96}, GetParam()).requires_grad_();
    const auto all = [&](int threads) {
      const int before = at::get_num_threads();
      at::set_num_threads(threads);
      const torch::Tensor y = blocked_linear(x, w);
      const auto grads = torch::autograd::grad({y}, {x, w}, {dy});
      at::set_num_threads(before);
      return at::cat({y.flatten(), grads[0].flatten(), grads[1].flatten()});
    };
    const torch::Tensor one = all(1);
    for (const int threads : {2, 3, 5}) EXPECT_TRUE(all(threads).equal(one)) << n << " " << threads;
  }
}

#ifndef ANYMESH_SANITIZE  // the sanitizers keep freed memory
// LibTorch's brgemm keeps code for each size that it meets, and experts have another number of
// tokens at each step. With code for each number this grows by 187 MiB.
TEST(Linear, KeepsLittleCodeForManyNumbersOfRows) {
  if (!runs_in_blocks(torch::kFloat)) GTEST_SKIP() << "this CPU multiplies fp32 otherwise";
  const auto resident = [] {  // MiB
    int64_t total = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> total >> pages;
    return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
  };
  const torch::Tensor w = random({128, 64}, torch::kFloat).requires_grad_();
  const auto multiply = [&](int64_t rows) {
    const torch::Tensor x = random({rows, 64}, torch::kFloat).requires_grad_();
    torch::autograd::backward({blocked_linear(x, w)}, {random({rows, 128}, torch::kFloat)});
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);  // each thread has its own code
  multiply(1024);
  const double before = resident();
  for (int64_t rows = 2; rows < 1024; rows += 2) multiply(rows);
  const double grown = resident() - before;
  at::set_num_threads(threads);
  EXPECT_LT(grown, 80);
}
#endif

// The blocks cannot do these shapes.
TEST_P(Blocks, OtherShapes) {
  at::manual_seed(3);
  expect_close_to_float64({3, 32}, 16, true);  // an odd number of rows
  expect_close_to_float64({4, 20}, 16, true);  // no multiple of 16
  expect_close_to_float64({4, 16}, 12, true);  //
  expect_close_to_float64({0, 32}, 16, true);  // no rows
}

// Frozen tensors want none.
TEST(Linear, GivesNoGradientThatNobodyWants) {
  at::manual_seed(6);
  const torch::Tensor x = random({4, 32}).requires_grad_(), w = random({16, 32}), b = random({16});
  torch::autograd::backward({blocked_linear(x, w, b)}, {at::ones({4, 16}, torch::kBFloat16)});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(b.grad().defined());
  EXPECT_TRUE(at::allclose(x.grad(), w.sum(0).expand({4, 32}), 1e-2, 1e-1));
}

TEST(Linear, TakesViews) {
  at::manual_seed(4);
  const torch::Tensor x = random({6, 32}), w = random({16, 32});
  EXPECT_TRUE(blocked_linear(x.t().contiguous().t(), w).equal(blocked_linear(x, w)));
  EXPECT_TRUE(blocked_linear(x, w.t().contiguous().t()).equal(at::linear(x, w)));
}

TEST(Linear, OtherTypesTakeLibTorchsOperator) {
  at::manual_seed(5);
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const int64_t k = runs_in_blocks(dtype) ? 20 : 32;  // blocks cannot do 20
    const torch::Tensor x = at::randn({6, k}).to(dtype), w = at::randn({16, k}).to(dtype);
    EXPECT_TRUE(blocked_linear(x, w).equal(at::linear(x, w)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Blocks, testing::Values(torch::kFloat, torch::kBFloat16),
                         [](const auto& tested) {
                           return std::string(c10::toString(tested.param));
                         });

}  // namespace
}  // namespace anymesh
