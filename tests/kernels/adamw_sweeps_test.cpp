#include "framework/kernels/adamw_sweeps.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <mutex>
#include <set>
#include <thread>

namespace anymesh {
namespace {

TEST(AdamW, EqualsTorchs) {
  torch::manual_seed(1);
  torch::Tensor ours = torch::randn({1001}, torch::kDouble), theirs = ours.clone().requires_grad_();
  torch::Tensor exp_avg = torch::zeros_like(ours), exp_avg_sq = torch::zeros_like(ours);
  torch::optim::AdamW reference(
      {theirs}, torch::optim::AdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.3));
  for (int step = 1; step <= 5; ++step) {
    const torch::Tensor gradient = torch::randn({1001}, torch::kDouble);
    theirs.mutable_grad() = gradient * 0.25;
    reference.step();
    adamw_step({{ours, gradient, exp_avg, exp_avg_sq}}, {0.8, 0.95, 1e-6}, step, 1e-2, 0.3, 0.25);
  }
  EXPECT_TRUE(ours.allclose(theirs.detach(), 1e-13, 1e-13));
}

TEST(AdamW, WhereATensorIsCutChangesNoBit) {
  torch::manual_seed(2);
  constexpr int64_t n = 50'000;
  const torch::Tensor start = torch::randn({n}), gradient = torch::randn({n});
  const auto run = [&](const std::vector<int64_t>& cuts) {
    torch::Tensor w = start.clone(), m = torch::zeros({n}), v = torch::zeros({n});
    for (int step = 1; step <= 3; ++step) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto piece = [&](const torch::Tensor& t) {
          return t.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
        };
        adamw_step({{piece(w), piece(gradient), piece(m), piece(v)}}, {}, step, 1e-3, 0.1, 0.7);
      }
    }
    return w;
  };
  EXPECT_TRUE(torch::equal(run({0, n}), run({0, 1, 14, 17'000, 17'001, 33'333, n})));
}

// Large tensors go past the caches, in parts of 16 bytes. A tensor that does not begin at one does
// not.
TEST(AdamW, RoundsWeights) {
  torch::manual_seed(4);
  for (const int64_t n : {5, 70'003, 1'100'003}) {
    for (const int64_t start : {0, 3}) {
      const torch::Tensor w = torch::randn({n}), zeros = torch::zeros({n}),
                          rounded = torch::full({n + start}, 7, torch::kBFloat16);
      adamw_step(
          {{w, torch::randn({n}), zeros.clone(), zeros.clone(), rounded.narrow(0, start, n)}}, {},
          1, 1e-3, 0.1, 1);
      EXPECT_TRUE(rounded.narrow(0, start, n).equal(w.to(torch::kBFloat16))) << n << " " << start;
      EXPECT_TRUE(rounded.narrow(0, 0, start).eq(7).all().item<bool>());
    }
  }
}

TEST(Widen, ChangesNoValue) {
  torch::manual_seed(5);
  for (const auto dtype : {torch::kBFloat16, torch::kFloat, torch::kHalf}) {
    for (const int64_t n : {5, 70'003, 550'003}) {
      for (const int64_t start : {0, 1}) {
        const torch::Tensor x = torch::randn({1, n}).to(dtype), flat = torch::full({n + 2}, 7.f);
        widen(x, flat.narrow(0, start, n));
        EXPECT_TRUE(flat.narrow(0, start, n).equal(x[0].to(torch::kFloat))) << dtype << " " << n;
        EXPECT_EQ(flat.eq(7).sum().item<int64_t>(), 2);
      }
    }
  }
  const torch::Tensor square = torch::randn({40, 40}), flat = torch::empty({1600});
  widen(square.t(), flat);
  EXPECT_TRUE(flat.equal(square.t().flatten()));
}

TEST(SumOfSquares, IsInDouble) {
  torch::manual_seed(3);
  const torch::Tensor x = torch::randn({100'003}) * 1e4;
  const double expected = x.to(torch::kDouble).square().sum().item<double>();
  EXPECT_NEAR(sum_of_squares(x) / expected, 1, 1e-14);
  EXPECT_EQ(sum_of_squares(torch::empty({0})), 0);
  EXPECT_TRUE(std::isnan(sum_of_squares(torch::full({5}, NAN))));
}

// The target `libtorch` brings OpenMP's flags: without them a sweep would be a serial loop.
TEST(Threads, ShareASweep) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> swept;
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    swept.insert(std::this_thread::get_id());
  });
  at::set_num_threads(threads);
  EXPECT_EQ(swept.size(), 2u);
}

TEST(Threads, LeaveSumsAsTheyAre) {
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({1'000'003});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double expected = sum_of_squares(x);
  for (const int n : {2, 3, 7}) {
    at::set_num_threads(n);
    EXPECT_EQ(sum_of_squares(x), expected);
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace anymesh
