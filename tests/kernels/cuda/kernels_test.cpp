// The GPU kernels, compiled for the CPU (simt/). AdamW and dropout write the same bits as their
// twins; the others meet float64.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "framework/kernels/adamw_sweeps.h"
#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/dropout.h"
#include "framework/kernels/heads.h"
#include "framework/kernels/vocabulary_rows.h"

namespace anymesh {
namespace {

Element element_of(torch::Dtype dtype) {
  return dtype == torch::kDouble     ? Element::Double
         : dtype == torch::kHalf     ? Element::Half
         : dtype == torch::kBFloat16 ? Element::BFloat16
                                     : Element::Float;
}
const void* data(const torch::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
void* room(const torch::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

torch::Tensor wide(const torch::Tensor& t) { return t.to(torch::kDouble); }
torch::Tensor leaf(const torch::Tensor& t) { return wide(t).requires_grad_(); }

// Compares to some units in the last place of the greatest value.
void expect_close(const torch::Tensor& got, const torch::Tensor& exact, const char* what) {
  const double unit = got.scalar_type() == torch::kFloat  ? 4e-7
                      : got.scalar_type() == torch::kHalf ? 1e-3
                                                          : 8e-3;
  const double scale = std::max(1e-3, exact.abs().max().item<double>()),
               off = (wide(got) - exact).abs().max().item<double>();
  EXPECT_LE(off, 4 * unit * scale) << what << " " << got.scalar_type() << " " << got.sizes();
}

class Kernels : public testing::TestWithParam<torch::Dtype> {
 protected:
  void SetUp() override { at::manual_seed(1); }
  torch::Tensor random(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }
  // Returns the same elements at an address where no pack of 16 bytes begins.
  static torch::Tensor shifted(const torch::Tensor& t) {
    return at::empty({t.numel() + 1}, t.options())
        .narrow(0, 1, t.numel())
        .copy_(t.flatten())
        .view(t.sizes());
  }
  const Element element = element_of(GetParam());
};

TEST(Adamw, WritesTheBitsOfItsTwin) {
  at::manual_seed(1);
  const AdamwCoefficients<double> k{.9, .999, 1e-8, 1e-3 / (1 - .9), 1 / (1 - .999), 1e-4, .7};
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const auto rounded : {torch::kBFloat16, torch::kHalf, torch::kFloat, torch::kDouble}) {
      // More pieces than a launch takes; of one chunk, of several, empty, and between packs.
      std::vector<int64_t> sizes(70, 9);
      sizes[3] = 40'001, sizes[4] = 0, sizes[5] = 10'007, sizes[66] = 16'384;
      const auto n = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
      torch::Tensor twin[5], ours[5];
      for (int i = 0; i < 5; ++i) {
        twin[i] = i < 4 ? at::randn({n}, dtype).abs_() : at::zeros({n}, rounded);
        ours[i] = twin[i].clone();
      }
      adamw_step({{twin[0], twin[1], twin[2], twin[3], twin[4]}}, {}, /*step=*/1, 1e-3, .1, .7);
      std::vector<AdamwPiece> pieces;
      int64_t start = 0;
      for (const int64_t size : sizes) {
        const auto own = [&](int i) { return room(ours[i].narrow(0, start, size)); };
        pieces.push_back({own(0), own(1), own(2), own(3), own(4), size});
        start += size;
      }
      launch_adamw(pieces, element_of(dtype), element_of(rounded), k, nullptr);
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(ours[i].equal(twin[i])) << dtype << rounded << i;
    }
}

TEST(Squares, MeetTheirTwin) {
  at::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    std::vector<torch::Tensor> x;
    for (const int64_t n : {0, 1, 257, 100'003}) x.push_back(at::randn({n}, dtype));
    while (x.size() < 70) x.push_back(at::randn({11}, dtype));
    std::vector<SquaresPiece> pieces;
    for (const torch::Tensor& each : x) pieces.push_back({data(each), each.numel()});
    const torch::Tensor parts = at::full({square_parts(pieces)}, NAN, torch::kDouble);
    launch_squares(pieces, element_of(dtype), parts.data_ptr<double>(), nullptr);
    const double twin = sum_of_squares(x);
    EXPECT_NEAR(parts.sum().item<double>(), twin, 1e-14 * twin);
  }
}

TEST_P(Kernels, DropoutDropsWhatItsTwinDrops) {
  const DropoutContext context{.seed = 42, .samples = {1'000'000'000'000}};
  const DropoutStream stream{3, DropoutSite::MlpOutput};
  for (const int64_t n : {1, 3, 2049})
    for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{1} << 33}) {
      const torch::Tensor x = random({1, n}), y = at::empty_like(x);
      launch_dropout(data(x), room(y), element, n,
                     {.seed = context.seed,
                      .stream = stream.layer * 4 + static_cast<uint32_t>(stream.site),
                      .sample = context.samples[0],
                      .first = first,
                      .least = static_cast<uint32_t>(.3 * 4294967296.0),
                      .scale = 1 / (1 - .3)},
                     nullptr);
      EXPECT_TRUE(y.equal(dropout(x, .3, context, stream, first))) << n << " " << first;
    }
}

TEST_P(Kernels, SwigluMeetsFloat64) {
  for (const int64_t f : {8, 24, 3000, 7})
    for (const bool shift : {false, true}) {
      torch::Tensor x = random({5, 2 * f}) * 3, dy = random({5, f});
      if (shift) x = shifted(x), dy = shifted(dy);
      const torch::Tensor y = at::empty_like(dy), dx = at::empty_like(x), exact_x = leaf(x),
                          gate = exact_x.narrow(1, 0, f), up = exact_x.narrow(1, f, f),
                          exact = at::silu(gate) * up;
      launch_swiglu({.x = data(x), .out = room(y), .dtype = element, .rows = 5, .f = f}, nullptr);
      launch_swiglu_backward({data(x), data(dy), room(dx), element, 5, f}, nullptr);
      exact.backward(wide(dy));
      expect_close(y, exact.detach(), "swiglu");
      expect_close(dx, exact_x.grad(), "its gradient");
    }
}

TEST_P(Kernels, NormMeetsFloat64) {
  for (const bool has_bias : {true, false})
    for (const bool takes_y : {true, false})
      for (const auto& [rows, h] :
           {std::pair<int64_t, int64_t>{1, 16}, {70, 48}, {2, 2056}, {65, 21}, {3, 1032}}) {
        SCOPED_TRACE(testing::Message() << has_bias << takes_y << " " << rows << " x " << h);
        const torch::Tensor x = random({rows, h}) * 3 + 1, dy = random({rows, h}),
                            weight = random({h}), y = takes_y ? random({rows, h}) : torch::Tensor(),
                            dsum = takes_y ? random({rows, h}) : torch::Tensor(),
                            bias = has_bias ? random({h}) : torch::Tensor(),
                            sum = takes_y ? at::empty_like(x) : x, normed = at::empty_like(x),
                            dx = at::empty_like(x), moments = at::empty({rows, 2}),
                            parts = at::full({kRowParts, 2, h}, NAN);
        launch_norm({data(x), data(y), takes_y ? room(sum) : nullptr, data(weight), data(bias),
                     room(normed), moments.data_ptr<float>(), element, rows, h, 1e-5f},
                    nullptr);
        launch_norm_backward(
            {data(sum), data(dy), data(dsum), data(weight), moments.data_ptr<float>(), room(dx),
             parts.data_ptr<float>(), has_bias, element, rows, h},
            nullptr);
        EXPECT_TRUE(sum.equal(takes_y ? x + y : x));
        const torch::Tensor exact_x = leaf(sum), w = leaf(weight),
                            b = has_bias ? leaf(bias) : torch::Tensor();
        const torch::Tensor exact = has_bias ? at::layer_norm(exact_x, {h}, w, b, 1e-5)
                                             : at::rms_norm(exact_x, {h}, w, 1e-5);
        exact.backward(wide(dy));
        expect_close(normed, exact.detach(), "norm");
        expect_close(dx, takes_y ? exact_x.grad() + wide(dsum) : exact_x.grad(), "dx");
        expect_close(parts.select(1, 0).sum(0), w.grad(), "dweight");
        if (has_bias) expect_close(parts.select(1, 1).sum(0), b.grad(), "dbias");
      }
}

TEST_P(Kernels, ColumnSumsMeetFloat64) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 8}, {70, 48}, {600, 264}, {65, 21}, {3, 1030}}) {
    const torch::Tensor x = random({rows, columns}), parts = at::full({kRowParts, columns}, NAN);
    launch_column_sums({data(x), parts.data_ptr<float>(), element, rows, columns}, nullptr);
    expect_close(parts.sum(0), wide(x).sum(0), "sum");
  }
}

// Heads of any strides, some turned, by tables of any rows.
TEST_P(Kernels, HeadsMoveAsLibtorchsOperatorsMoveThem) {
  constexpr int64_t b = 2, s = 5, k = 3;
  for (const auto& [group, d, half] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 16, 0}, {2, 16, 8}, {3, 24, 8}, {1, 6, 2}})
    for (const bool has_positions : {false, true}) {
      SCOPED_TRACE(testing::Message() << group << " " << d << " " << half << has_positions);
      const torch::Tensor projected = random({b, s, k, group + 2, d}), angles = at::rand({s, half}),
                          cos = angles.cos().to(GetParam()), sin = angles.sin().to(GetParam()),
                          positions = at::randint(s, {b, s}, torch::kLong);
      const Rotation rotation{half > 0 ? cos : torch::Tensor(), sin,
                              has_positions ? positions : torch::Tensor()};
      const Rotation exact_rotation{half > 0 ? wide(cos) : torch::Tensor(), wide(sin),
                                    rotation.positions};
      const torch::Tensor exact = leaf(projected);
      const Heads expected = split_heads(exact, exact_rotation);
      const torch::Tensor q = at::zeros({b, s, k * group, d}, GetParam()).transpose(1, 2),
                          key = at::zeros({b, k, s, d}, GetParam());
      const auto heads = [](const torch::Tensor& x) {
        return HeadTensor{x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
      };
      HeadRows rows{.projected = room(projected),
                    .q = heads(q),
                    .k = heads(key),
                    .cos = data(rotation.cos),
                    .sin = half > 0 ? data(sin) : nullptr,
                    .rows_of_tables = has_positions ? positions.const_data_ptr<int64_t>() : nullptr,
                    .dtype = element,
                    .rows = b * s,
                    .positions = s,
                    .groups = k,
                    .group = group,
                    .d = d,
                    .half = half};
      launch_split_heads(rows, nullptr);
      expect_close(q, expected.q.detach(), "queries");
      expect_close(key, expected.k.detach(), "keys");

      const torch::Tensor dq = random({b, k * group, s, d}),
                          dk = random({b, s, k, d}).transpose(1, 2), dv = random({b, k, s, d}),
                          back = at::full_like(projected, NAN);
      torch::autograd::backward({expected.q, expected.k, expected.v},
                                {wide(dq), wide(dk), wide(dv)});
      rows.projected = room(back);
      rows.q = heads(dq), rows.k = heads(dk), rows.v = heads(dv);
      launch_join_heads(rows, nullptr);
      expect_close(back, exact.grad(), "gradient");
    }
}

TEST_P(Kernels, RowSumsAreThoseOfTheRealColumns) {
  for (const auto& [columns, real] : {std::pair<int64_t, int64_t>{16, 16},
                                      {40, 33},
                                      {7, 7},
                                      {5000, 4990},
                                      {1001, 1001},
                                      {24, 1},
                                      {24, 0}}) {
    torch::Tensor x = random({5, columns}) * 5;
    if (real > 1) x[1][0] = -INFINITY;
    const torch::Tensor maxima = at::empty({5}), sums = at::empty({5});
    launch_row_sums({data(x), element, 5, columns, real}, maxima.data_ptr<float>(),
                    sums.data_ptr<float>(), nullptr);
    if (real == 0) {
      EXPECT_TRUE(maxima.equal(at::full({5}, -INFINITY)));
      EXPECT_TRUE(sums.equal(at::zeros({5})));
      continue;
    }
    const torch::Tensor exact = wide(x.narrow(1, 0, real));
    EXPECT_TRUE(wide(maxima).equal(exact.amax(-1)));
    expect_close(maxima + sums.log(), exact.logsumexp(-1), "log of the sum");
  }
}

TEST_P(Kernels, RowSumsKeepNans) {
  const torch::Tensor x = random({3, 50}), maxima = at::empty({3}), sums = at::empty({3});
  x[0][0] = NAN;
  x[2][49] = NAN;
  launch_row_sums({data(x), element, 3, 50, 50}, maxima.data_ptr<float>(), sums.data_ptr<float>(),
                  nullptr);
  EXPECT_TRUE(sums.isnan().equal(torch::tensor({true, false, true})));
}

TEST_P(Kernels, LogitsGradientIsSoftmaxMinusTarget) {
  for (const auto& [columns, real] :
       {std::pair<int64_t, int64_t>{16, 16}, {40, 33}, {9, 5}, {5000, 4990}}) {
    const torch::Tensor x = random({4, columns}) * 5, scales = at::rand({4}) + .5,
                        out = at::empty_like(x),
                        targets = torch::tensor({int64_t{0}, int64_t{-1}, real - 1, int64_t{2}}),
                        log_sums = wide(x.narrow(1, 0, real)).logsumexp(-1).to(torch::kFloat);
    launch_logits_gradient({data(x), element, 4, columns, real}, log_sums.data_ptr<float>(),
                           targets.data_ptr<int64_t>(), scales.data_ptr<float>(), room(out),
                           nullptr);
    torch::Tensor exact = wide(x.narrow(1, 0, real)).softmax(-1);
    for (const int64_t row : {0, 2, 3}) exact[row][targets[row].item<int64_t>()] -= 1;
    expect_close(out, at::constant_pad_nd(exact * scales.unsqueeze(-1), {0, columns - real}),
                 "gradient");
  }
}

INSTANTIATE_TEST_SUITE_P(, Kernels, testing::Values(torch::kFloat, torch::kBFloat16, torch::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace anymesh
