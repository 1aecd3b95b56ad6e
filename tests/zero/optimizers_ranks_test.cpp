// Given the same gradients, each optimizer leaves the bits of one process on every mesh and stage.
#include <torch/csrc/autograd/autograd.h>

#include "framework/zero/zero_optimizer.h"
#include "tests/support/ranks.h"
#include "tests/support/whole_optimizer.h"

namespace anymesh {
namespace {

// Matrices cut along either dim, in two parts, not at all, experts, and others.
std::vector<ParamSpec> make_params(const ProcessGrid& grid, torch::Dtype dtype) {
  ParamBuilder builder({grid.tp}, dtype, 5);
  builder.ep = {grid.ep, grid.topology.whole_experts};
  const Init init = Init::normal(0.3);
  builder.add({.name = "table", .shape = {8, 6}, .split_dim = 0, .vocabulary = true}, init);
  builder.add({.name = "rows", .shape = {20, 6}, .split_dim = 0}, init);
  builder.add({.name = "bias", .shape = {20}, .split_dim = 0, .weight_decay = false}, init);
  builder.add({.name = "gate_up", .shape = {16, 6}, .split_dim = 0, .sub_params = 2}, init);
  builder.add({.name = "columns", .shape = {6, 8}, .split_dim = 1}, init);
  builder.add({.name = "router", .shape = {3, 7}}, init);
  builder.add({.name = "one", .shape = {1, 1}}, init);
  builder.add({.name = "experts", .shape = {4, 6, 8}, .split_dim = 2, .experts = true}, init);
  return builder.take();
}

// Returns this rank's part of a whole tensor.
torch::Tensor part_of(torch::Tensor whole, const ParamSpec& spec, const ProcessGrid& grid) {
  const Topology& mesh = grid.topology;
  if (spec.split_dim >= 0)
    whole = whole.unflatten(spec.split_dim, {spec.sub_params, mesh.tp_size, -1})
                .select(spec.split_dim + 1, grid.coord.tp)
                .flatten(spec.split_dim, spec.split_dim + 1);
  if (spec.experts)
    whole = whole.unflatten(0, {mesh.ep_size, -1}).select(0, mesh.ep_rank_of(grid.coord));
  return whole.contiguous();
}

// Makes three steps. Only the first of the ranks with a parameter has a gradient, so that no sum
// rounds. Returns the parameters and the states of the whole ones.
struct Trained {
  std::vector<torch::Tensor> params;
  std::map<std::string, std::vector<torch::Tensor>> whole_states;
};
Trained train(const ProcessGrid& grid, const ZeroConfig& config, torch::Dtype dtype) {
  const std::vector<ParamSpec> params = make_params(grid, dtype);
  ZeroOptimizer optimizer(params, grid, config);
  for (int step = 0; step < 3; ++step) {
    for (size_t i = params.size(); i-- > 0;) {
      const ParamSpec& spec = params[i];
      torch::Tensor whole = torch::arange(c10::multiply_integers(spec.shape), torch::kDouble);
      whole = torch::sin(whole * static_cast<double>(i + 2) + step).view(spec.shape);
      whole = part_of(whole, spec, grid).to(dtype);
      if (optimizer.replicas_of(spec)->rank() > 0) whole.zero_();
      torch::autograd::backward({spec.tensor.view_as(spec.tensor)}, {whole});
    }
    optimizer.end_backward();
    optimizer.reduce_gradients();
    optimizer.step(0.02, /*grad_norm=*/2);
  }
  optimizer.before_forward(0);  // stage 3 has whole parameters only now
  Trained result;
  for (const ParamSpec& spec : params) result.params.push_back(spec.tensor.detach().clone());
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i)
      result.whole_states[group.params[i].name] = group.whole_states[i];
  return result;
}

class OptimizersTest : public testing::TestWithParam<std::string> {};
using OptimizersTestRank = RankFixtureOf<OptimizersTest>;

RANKS_TEST_P(OptimizersTest, LeaveTheBitsOfOneProcess) {
  const CommPtr alone = test_world()->split(test_world()->rank(), 0);
  const ProcessGrid single(alone, {});
  const std::pair<Topology, int> meshes[] = {
      {{.dp_size = 3}, 2},
      {{.tp_size = 4}, 0},
      {{.dp_size = 2, .tp_size = 2}, 0},
      {{.dp_size = 2, .tp_size = 2}, 1},
      {{.dp_size = 2, .tp_size = 2}, 3},
      {{.dp_size = 4, .ep_size = 2}, 2},
      {{.dp_size = 2, .tp_size = 2, .ep_size = 2}, 3},
      {{.dp_size = 2, .tp_size = 2, .ep_size = 2, .whole_experts = true}, 1}};
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
    ZeroConfig config{.optimizer = {.name = GetParam()}, .weight_decay = 0.1};
    config.optimizer.own = std::make_shared<WholeOptimizer>();
    const Trained control = train(single, config, dtype);
    for (const auto& [mesh, stage] : meshes) {
      const CommPtr world = first_ranks(mesh.world_size());
      if (!world) continue;
      const ProcessGrid grid(world, mesh);
      config.stage = stage;
      for (const char* device : {"none", "nvme"}) {
        if (stage == 0 && device != std::string("none")) continue;
        config.offload = {.optimizer = device, .nvme_path = testing::TempDir()};
        const Trained ours = train(grid, config, dtype);
        const std::vector<ParamSpec> specs = make_params(grid, dtype);
        for (size_t i = 0; i < specs.size(); ++i) {
          const std::string& name = specs[i].name;
          EXPECT_TRUE(ours.params[i].equal(part_of(control.params[i], specs[i], grid)) &&
                      std::ranges::equal(ours.whole_states.at(name), control.whole_states.at(name),
                                         &torch::equal))
              << name << ", " << describe(mesh) << ", ZeRO " << stage << " " << device;
        }
      }
      config.offload = {};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizersTest,
                         testing::Values("adam", "sgd", "lion", "muon", "Whole"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace anymesh
