// Compares the stages on dp 1, 2, 3, 5 with torch::optim::AdamW on the summed gradients, uneven and
// tiny parameters included.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "framework/comm/agreement.h"
#include "framework/storage.h"
#include "framework/zero/sharded_params.h"
#include "framework/zero/zero_optimizer.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr int kSteps = 4, kMicroBatches = 3;

std::vector<ParamSpec> make_params(const CommPtr& alone, torch::Dtype dtype) {
  ParamBuilder builder({alone}, dtype, 5);
  builder.add({.name = "1.a", .shape = {13, 7}}, Init::normal(1));
  builder.add({.name = "2.b", .shape = {1}, .weight_decay = false}, Init::normal(1));
  builder.add({.name = "2.c", .shape = {3, 3}}, Init::normal(1));
  builder.add({.name = "3.d", .shape = {5}, .weight_decay = false}, Init::normal(1));
  return builder.take();
}

// Returns the gradient of parameter i in a step's micro-batch on a dp rank.
torch::Tensor gradient(size_t i, int step, int micro_batch, int dp, const torch::Tensor& like) {
  const torch::Tensor n = torch::arange(like.numel(), torch::kDouble).view(like.sizes());
  return torch::sin(n * static_cast<double>(i + 1) + step * 10 + micro_batch * 3 + dp)
      .to(like.scalar_type());
}

// ZeRO stage, dp, and the state on disk: 0 nothing, 1 the optimizer, 2 at stage 3 the weights too.
class ZeroOptimizerTest : public testing::TestWithParam<std::tuple<int, int, int>> {};
struct ZeroOptimizerTestRank : RankFixtureOf<ZeroOptimizerTest> {
  const int stage = std::get<0>(GetParam()), dp = std::get<1>(GetParam());
  const OffloadConfig offload{
      .optimizer = stage > 0 && std::get<2>(GetParam()) > 0 ? "nvme" : "none",
      .param = stage == 3 && std::get<2>(GetParam()) > 1 ? "nvme" : "none",
      .nvme_path = testing::TempDir()};
};

RANKS_TEST_P(ZeroOptimizerTest, EqualsTorchOnTheSummedGradients) {
  const CommPtr world = first_ranks(dp), alone = test_world()->split(test_world()->rank(), 0);
  if (!world) return;
  const ProcessGrid grid(world, {.dp_size = dp});
  const auto ours = make_params(alone, torch::kDouble),
             reference = make_params(alone, torch::kDouble);
  for (const ParamSpec& spec : reference) spec.materialize();
  ZeroOptimizer optimizer(
      ours, grid, {.stage = stage, .weight_decay = 0.2, .clip_grad = 1.5, .offload = offload});

  using torch::optim::AdamWOptions;
  std::vector<torch::Tensor> all;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool decays : {true, false}) {
    std::vector<torch::Tensor> members;
    for (const ParamSpec& spec : reference) {
      if (spec.weight_decay == decays) members.push_back(spec.tensor);
    }
    groups.emplace_back(
        members, std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(decays ? 0.2 : 0)));
  }
  torch::optim::AdamW adamw(groups, AdamWOptions(0.01));
  for (const ParamSpec& spec : reference) all.push_back(spec.tensor);

  for (int step = 0; step < kSteps; ++step) {
    for (const ParamSpec& spec : reference)
      spec.tensor.mutable_grad() = torch::zeros_like(spec.tensor);
    for (int m = 0; m < kMicroBatches; ++m) {
      for (size_t i = ours.size(); i-- > 0;) {
        const torch::Tensor& leaf = ours[i].tensor;
        torch::autograd::backward({leaf.view_as(leaf)},
                                  {gradient(i, step, m, grid.coord.dp, leaf)});
        for (int r = 0; r < dp; ++r)
          reference[i].tensor.mutable_grad() += gradient(i, step, m, r, leaf);
      }
      optimizer.end_backward();
    }
    const double norm = torch::nn::utils::clip_grad_norm_(all, 1.5);
    adamw.step();
    EXPECT_NEAR(optimizer.reduce_gradients() / norm, 1, 1e-6);
    optimizer.step(0.01, norm);
  }
  optimizer.before_forward(0);  // stage 3 has whole parameters only now
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(ours[i].tensor.allclose(reference[i].tensor, 1e-12, 1e-12)) << ours[i].name;
  }
}

// A unit may have no parameters, between the others or after them.
RANKS_TEST(ShardedParams, UnitsWithoutParameters) {
  const torch::Tensor first = torch::empty({3}), third = torch::empty({3});
  release_storage(first);
  release_storage(third);
  ShardedParams params({{first, StateTensor(torch::ones({3})), {0}},
                        {third, StateTensor(torch::full({3}, 2.f)), {2}}},
                       /*chunks=*/{0, 0, 0}, test_world()->split(test_world()->rank(), 0));
  for (int unit = 0; unit < 4; ++unit) {
    params.before_forward(unit);
    if (unit == 2) {
      EXPECT_TRUE(third.equal(torch::full({3}, 2.f)));
    }
    params.after_forward(unit);
  }
  for (int unit = 3; unit >= 0; --unit) params.before_backward(unit);
  EXPECT_TRUE(first.equal(torch::ones({3})));
  params.release_all();
  EXPECT_EQ(params.in_flight().now, 0);
}

// An error of one rank's disk is every rank's error.
RANKS_TEST(ZeroOptimizerOffload, RefusesAFolderThatIsNotThere) {
  const CommPtr alone = test_world()->split(test_world()->rank(), 0);
  const ProcessGrid grid(test_world(), {.dp_size = test_world()->size()});
  const std::string path =
      test_world()->rank() == 1 ? testing::TempDir() + "no_such_folder" : testing::TempDir();
  const auto params = make_params(alone, torch::kFloat);
  try {
    ZeroOptimizer(params, grid, {.stage = 1, .offload = {.optimizer = "nvme", .nvme_path = path}});
    ADD_FAILURE() << "no error";
  } catch (const CollectiveError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("[rank 1] --nvme-path ")) << error.what();
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, int, int>>& info) {
  const auto [stage, dp, offload] = info.param;
  const char* suffixes[] = {"", "offload", "offloadall"};
  return "stage" + std::to_string(stage) + "dp" + std::to_string(dp) + suffixes[offload];
}
INSTANTIATE_TEST_SUITE_P(All, ZeroOptimizerTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2, 3, 5),
                                          testing::Values(0)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OnDisk, ZeroOptimizerTest,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 3),
                                          testing::Values(1, 2)),
                         name_of);

}  // namespace
}  // namespace anymesh
