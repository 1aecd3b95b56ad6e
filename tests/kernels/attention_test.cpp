#include "framework/kernels/attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace anymesh {
namespace {

struct AttentionCase {
  const char* name;
  int64_t s = 64, groups = 2, heads = 1, d = 32;  // heads of a group
  int64_t rotary = 0;                             // elements that turn
  bool alibi = false;
  double dropout = 0;
  int64_t window = 0;
  bool documents = false;
};

torch::Tensor rotated(const torch::Tensor& x, const AttentionExtras& extras) {  // [b, n, s, d]
  if (!extras.cos.defined()) return x;
  const int64_t half = extras.cos.size(1);
  const auto p = x.split_with_sizes({half, half, x.size(-1) - 2 * half}, -1);
  torch::Tensor cos = extras.cos, sin = extras.sin;
  if (extras.positions.defined()) {  // [b, 1, s, half]
    cos = cos.index({extras.positions}).unsqueeze(1);
    sin = sin.index({extras.positions}).unsqueeze(1);
  }
  return at::cat({p[0] * cos - p[1] * sin, p[1] * cos + p[0] * sin, p[2]}, -1);
}

// Returns which keys the queries do not see, [b, 1, s, s].
torch::Tensor unseen(int64_t b, int64_t s, const AttentionExtras& extras) {
  torch::Tensor hidden = at::zeros({b, 1, s, s}, torch::kBool);
  auto at = hidden.accessor<bool, 4>();
  for (int64_t sample = 0; sample < b; ++sample)
    for (int64_t query = 0; query < s; ++query)
      for (int64_t key = 0; key < s; ++key)
        at[sample][0][query][key] =
            key > query || (extras.window > 0 && key + extras.window <= query) ||
            (extras.first_keys.defined() && key < extras.first_keys[sample][query].item<int64_t>());
  return hidden;
}

// Computes the definition in LibTorch's operators.
torch::Tensor plain_attention(const torch::Tensor& qkv, const AttentionExtras& extras) {
  const int64_t b = qkv.size(0), s = qkv.size(1), groups = qkv.size(2), heads = qkv.size(3) - 2,
                d = qkv.size(4);
  const auto part = [&](int64_t first, int64_t count) {
    return qkv.narrow(3, first, count).flatten(2, 3).transpose(1, 2);  // [b, groups * count, s, d]
  };
  const torch::Tensor q = rotated(part(0, heads), extras),
                      k = rotated(part(heads, 1), extras).repeat_interleave(heads, 1),
                      v = part(heads + 1, 1).repeat_interleave(heads, 1);
  torch::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
  scores = scores.masked_fill(unseen(b, s, extras), -INFINITY);
  if (extras.bias) scores = scores + *extras.bias;
  torch::Tensor weights = at::softmax(scores, -1);  // [b, n, s, s]
  weights = dropout(weights, extras.dropout, extras.context, {extras.layer, DropoutSite::Attention},
                    extras.first_head * s * s);
  return at::matmul(weights, v).transpose(1, 2).reshape({b, s, groups * heads * d});
}

AttentionExtras extras_of(const AttentionCase& c) {
  AttentionExtras extras{.dropout = c.dropout,
                         .context = {.seed = 7, .samples = {5, 11}},
                         .layer = 3,
                         .first_head = 4};
  if (c.rotary > 0) {
    const torch::Tensor angles =
        at::outer(at::arange(c.s, torch::kFloat), at::rand({c.rotary / 2}));
    extras.cos = angles.cos();
    extras.sin = angles.sin();
  }
  if (c.alibi) extras.bias = at::randn({1, c.groups * c.heads, c.s, c.s});
  extras.window = c.window;
  if (c.documents) {  // of 1 to s tokens, other ones in each sample
    const torch::Tensor begins = at::rand({2, c.s}) < 0.05;
    extras.first_keys = std::get<0>(at::cummax(begins * at::arange(c.s), 1));
    extras.positions = at::arange(c.s) - extras.first_keys;
  }
  return extras;
}

double relative_error(const torch::Tensor& got, const torch::Tensor& expected) {
  return ((got.to(torch::kDouble) - expected).norm() / expected.norm()).item<double>();
}

class AttentionTest : public testing::TestWithParam<AttentionCase> {
 protected:
  // Compares values and gradients with those in float64.
  void expect_close(torch::Dtype dtype, double tolerance) {
    const AttentionCase& c = GetParam();
    at::manual_seed(1);
    AttentionExtras extras = extras_of(c);
    const torch::Tensor values = at::randn({2, c.s, c.groups, c.heads + 2, c.d}).to(dtype);
    const torch::Tensor weight = at::randn({2, c.s, c.groups * c.heads * c.d}).to(dtype);
    const torch::Tensor qkv = values.clone().requires_grad_();
    ASSERT_TRUE(can_fuse_attention(qkv));
    const torch::Tensor out = fused_attention(qkv, extras);
    torch::autograd::backward({out}, {weight});

    if (extras.bias) extras.bias = extras.bias->to(torch::kDouble);
    if (extras.cos.defined())
      extras.cos = extras.cos.to(torch::kDouble), extras.sin = extras.sin.to(torch::kDouble);
    const torch::Tensor exact = values.to(torch::kDouble).requires_grad_();
    const torch::Tensor expected = plain_attention(exact, extras);
    torch::autograd::backward({expected}, {weight.to(torch::kDouble)});
    EXPECT_LT(relative_error(out, expected), tolerance);
    for (int64_t i = 0; i < c.heads + 2; ++i)
      EXPECT_LT(relative_error(qkv.grad().select(3, i), exact.grad().select(3, i)), tolerance)
          << "gradient of " << i;
  }
};

TEST_P(AttentionTest, IsTheDefinitionInFp32) { expect_close(torch::kFloat, 2e-6); }
TEST_P(AttentionTest, IsTheDefinitionInBf16) { expect_close(torch::kBFloat16, 1e-2); }
TEST_P(AttentionTest, IsTheDefinitionInFp16) { expect_close(torch::kHalf, 2e-3); }

INSTANTIATE_TEST_SUITE_P(
    , AttentionTest,
    testing::Values(
        AttentionCase{.name = "Plain"}, AttentionCase{.name = "OneBlockIsNotFull", .s = 37},
        AttentionCase{.name = "LastBlockIsNotFull", .s = 150, .d = 16},
        AttentionCase{.name = "SharedKeys", .s = 130, .groups = 2, .heads = 3},
        AttentionCase{.name = "WideHeads", .s = 128, .d = 80},
        AttentionCase{.name = "Rotary", .s = 100, .rotary = 32},
        AttentionCase{.name = "RotaryInPart", .s = 64, .heads = 2, .rotary = 12},
        AttentionCase{.name = "Alibi", .s = 128, .heads = 2, .alibi = true},
        AttentionCase{.name = "Dropout", .s = 128, .dropout = 0.3},
        AttentionCase{.name = "Window", .s = 200, .window = 70},
        AttentionCase{.name = "Documents", .s = 200, .documents = true},
        AttentionCase{.name = "RotaryDocuments", .s = 150, .rotary = 32, .documents = true},
        AttentionCase{.name = "WindowOfDocuments", .s = 170, .window = 20, .documents = true},
        AttentionCase{.name = "All",
                      .s = 90,
                      .heads = 2,
                      .rotary = 8,
                      .alibi = true,
                      .dropout = 0.5,
                      .window = 40,
                      .documents = true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Attention, ThreadsDoNotChangeABit) {
  at::manual_seed(1);
  const torch::Tensor qkv = at::randn({3, 100, 2, 3, 32});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const torch::Tensor one = fused_attention(qkv, {});
  at::set_num_threads(4);
  EXPECT_TRUE(at::equal(fused_attention(qkv, {}), one));
  at::set_num_threads(threads);
}

TEST(Attention, LargeScoresStayFinite) {
  const torch::Tensor qkv = at::full({1, 70, 1, 3, 16}, 100.0).requires_grad_();
  const torch::Tensor out = fused_attention(qkv, {});
  torch::autograd::backward({out}, {at::ones_like(out)});
  EXPECT_TRUE(at::allclose(out, at::full_like(out, 100.0)));
  EXPECT_TRUE(qkv.grad().isfinite().all().item<bool>());
}

TEST(Attention, SaysWhatItCannot) {
  EXPECT_FALSE(can_fuse_attention(at::zeros({1, 8, 1, 3, 16}, torch::kDouble)));
  EXPECT_FALSE(can_fuse_attention(at::zeros({1, 8, 1, 3, 24})));
}

}  // namespace
}  // namespace anymesh
