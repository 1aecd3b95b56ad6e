// The pretend device finds what it is for.
#include "tests/pretend/device.h"

#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

const torch::Device kPretend(torch::kPrivateUse1, 0);

class PretendDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { pretend::install(); }
  c10::impl::VirtualGuardImpl guard_{torch::kPrivateUse1};
  c10::Stream other_ = guard_.getStreamFromGlobalPool(kPretend);
};

TEST_F(PretendDevice, ComputesAsTheCpu) {
  at::manual_seed(1);
  const torch::Tensor x = at::randn({5, 7}), w = at::randn({7, 3});
  const torch::Tensor on_x = x.to(kPretend), on_w = w.to(kPretend).requires_grad_();
  const torch::Tensor cpu_w = w.clone().requires_grad_();
  const torch::Tensor y = at::gelu(on_x.matmul(on_w)).sum(),
                      cpu_y = at::gelu(x.matmul(cpu_w)).sum();
  torch::autograd::backward({y}, {});
  torch::autograd::backward({cpu_y}, {});
  EXPECT_EQ(y.item<float>(), cpu_y.item<float>());
  EXPECT_TRUE(at::equal(on_w.grad().cpu(), cpu_w.grad()));
  EXPECT_TRUE(at::equal(on_x.t().narrow(0, 1, 3).cpu(), x.t().narrow(0, 1, 3)));
  EXPECT_TRUE(at::equal(on_x.clone().narrow(1, 2, 3).mul_(2).cpu(), x.narrow(1, 2, 3) * 2));
}

TEST_F(PretendDevice, TakesSparseGradients) {
  const torch::Tensor table = at::ones({6, 2}, kPretend).requires_grad_(),
                      ids = torch::tensor({1, 4, 1}, torch::kLong).to(kPretend);
  torch::autograd::backward({at::embedding(table, ids, -1, false, /*sparse=*/true).sum()}, {});
  const torch::Tensor gradient = table.grad().coalesce();
  EXPECT_TRUE(at::equal(gradient.indices().cpu(), torch::tensor({{1, 4}}, torch::kLong)));
  EXPECT_TRUE(at::equal(gradient.values().cpu(), torch::tensor({{2.f, 2.f}, {1.f, 1.f}})));
}

TEST_F(PretendDevice, FindsAMissingWaitBetweenStreams) {
  torch::Tensor x = at::zeros({4}, kPretend);
  const auto add_in_other = [&] {
    const c10::StreamGuard in(other_);
    x.add_(1);
  };
  EXPECT_THAT(message_of(add_in_other), HasSubstr("a wait is missing"));

  c10::Event written(torch::kPrivateUse1);
  written.record(guard_.getStream(kPretend));
  written.block(other_);
  add_in_other();
  EXPECT_REFUSES(x.mul(2), "a wait is missing");
  guard_.synchronizeStream(other_);
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({4})));
}

TEST_F(PretendDevice, FindsMemoryThatIsFreedInUse) {
  EXPECT_DEATH(
      {
        torch::Tensor x = at::zeros({4}, kPretend);
        guard_.synchronizeDevice(0);
        {
          const c10::StreamGuard in(other_);
          x.add_(1);
        }
        x.reset();
      },
      "is freed while stream");
}

TEST_F(PretendDevice, FindsAHostPointerIntoItsMemory) {
  const torch::Tensor x = at::zeros({4}, kPretend);
  EXPECT_DEATH({ std::fprintf(stderr, "%f", *static_cast<const float*>(x.const_data_ptr())); }, "");
}

TEST_F(PretendDevice, CountsWaits) {
  const torch::Tensor x = at::ones({4}, kPretend);
  const int64_t before = pretend::waits();
  const torch::Tensor y = x * 2 + 1;
  EXPECT_EQ(pretend::waits(), before);
  EXPECT_EQ(y.sum().item<float>(), 12);
  EXPECT_EQ(pretend::waits(), before + 1);
  torch::Tensor pinned = at::empty({4}, torch::dtype(torch::kFloat).pinned_memory(true));
  pinned.copy_(y, /*non_blocking=*/true);
  EXPECT_EQ(pretend::waits(), before + 1);
}

TEST_F(PretendDevice, FindsPinnedMemoryThatIsReadTooSoon) {
  const torch::Tensor x = at::ones({4}, kPretend),
                      pinned = at::empty({4}, torch::dtype(torch::kFloat).pinned_memory(true));
  pinned.copy_(x, /*non_blocking=*/true);
  EXPECT_DEATH({ std::fprintf(stderr, "%f", pinned.const_data_ptr<float>()[0]); }, "");
  guard_.synchronizeStream(guard_.getStream(kPretend));
  EXPECT_EQ(pinned.const_data_ptr<float>()[0], 1);
}

TEST_F(PretendDevice, GivesItsMemoryBack) {
  const int64_t before = pretend::bytes();
  {
    const torch::Tensor x = at::ones({1000}, kPretend), y = x + x;
    EXPECT_EQ(pretend::bytes(), before + 8000);
  }
  EXPECT_EQ(pretend::bytes(), before);
}

}  // namespace
}  // namespace anymesh
