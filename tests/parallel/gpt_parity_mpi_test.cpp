// Control = one process in plain torch::nn; test = the same model on a mesh of up to 8 ranks, in
// float64.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/dense_gpt.h"
#include "tests/support/mpi_world.h"

namespace anymesh {
namespace {

constexpr int kSamples = 8;
constexpr uint64_t kSeed = 7;

GptConfig tiny_gpt(bool untied) {
  GptConfig c;
  c.num_layers = 5;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.seq_length = 6;
  c.max_position_embeddings = 9;
  c.make_vocab_size_divisible_by = 3;
  c.vocab_size = 17;
  c.init_method_std = 0.2;
  c.attention_dropout = c.hidden_dropout = 0;
  c.untie_embeddings_and_output_weights = untied;
  return c;
}

torch::Tensor global_tokens(const GptConfig& c) {
  return (torch::arange(kSamples * (c.seq_length + 1)) * 7919 % 31 % c.vocab_size)
      .view({kSamples, c.seq_length + 1});
}

// Micro-batches of one sample, as batch_loader.h deals them out.
std::vector<MicroBatch> batches_of(const GptConfig& c, const Coord& coord, int dp_size, bool drop) {
  const torch::Tensor tokens = global_tokens(c);
  std::vector<MicroBatch> out;
  for (int64_t i = coord.dp; i < kSamples; i += dp_size) {
    const torch::Tensor row = tokens.narrow(0, i, 1);
    out.push_back(
        {.tokens = row.narrow(1, 0, c.seq_length).contiguous(),
         .labels = row.narrow(1, 1, c.seq_length).contiguous(),
         .dropout = {.seed = kSeed,
                     .samples = drop ? std::vector<int64_t>{i} : std::vector<int64_t>{}}});
  }
  return out;
}

// What this tp rank holds of a whole tensor, vocabulary padding included.
torch::Tensor shard_of(const torch::Tensor& whole, const ParamSpec& spec, const ProcessGrid& grid) {
  if (spec.split_dim < 0) return whole;
  const int64_t n = spec.tensor.size(spec.split_dim), begin = grid.coord.tp * n;
  torch::Tensor shard = torch::zeros(spec.tensor.sizes(), torch::kDouble);
  const int64_t real = std::clamp<int64_t>(whole.size(spec.split_dim) - begin, 0, n);
  if (real > 0)
    shard.narrow(spec.split_dim, 0, real).copy_(whole.narrow(spec.split_dim, begin, real));
  return shard;
}

double max_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

struct Result {
  double loss = 0;
  std::map<std::string, torch::Tensor> weights, gradients;  // this rank's slices, by name
};

Result run_on(const ProcessGrid& grid, const GptConfig& config, int zero_stage, bool drop,
              GptModel& model) {
  ZeroOptimizer optimizer(model.params(), grid, {.stage = zero_stage});
  PipelineEngine engine(model, grid);
  const auto batches = batches_of(config, grid.coord, grid.topology.dp_size, drop);
  torch::Tensor loss =
      torch::full({1}, engine.forward_backward(batches, 1.0 / kSamples), torch::kDouble);
  grid.dp->all_reduce(loss);
  optimizer.reduce_gradients();
  Result result{.loss = loss.item<double>() / grid.topology.dp_size};
  for (const auto& group : optimizer.groups()) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      const ParamSpec& spec = group.params[i];
      result.weights[spec.name] = spec.tensor.detach();
      result.gradients[spec.name] =
          group.gradient.narrow(0, group.layout.flat().param_offset(i), spec.tensor.numel())
              .view(spec.tensor.sizes());
    }
  }
  return result;
}

using Mesh = std::tuple<int, int, int, bool>;  // tp, pp, dp, untied
class GptParity : public testing::TestWithParam<Mesh> {
 protected:
  void SetUp() override {
    const auto [tp, pp, dp, untied] = GetParam();
    topology_ = {.pp_size = pp, .dp_size = dp, .tp_size = tp};
    untied_ = untied;
    world_ = first_ranks(topology_.world_size());
    alone_ = mpi_world()->split(mpi_world()->rank(), 0);
  }
  Topology topology_;
  bool untied_ = false;
  CommPtr world_, alone_;
};

TEST_P(GptParity, LossAndEveryGradientEqualThePlainModel) {
  if (!world_) return;
  const ProcessGrid grid(world_, topology_), one(alone_, Topology{});
  GptConfig config = tiny_gpt(untied_);
  GptModel whole(config, one, torch::kDouble, 1, kSeed),
      model(config, grid, torch::kDouble, 1, kSeed);

  DenseGpt dense(config);
  auto reference = dense.by_name();
  for (const ParamSpec& spec : whole.params()) {
    c10::NoGradGuard no_grad;
    reference.at(spec.name).copy_(spec.tensor.narrow(0, 0, spec.shape[0]));
  }
  const torch::Tensor tokens = global_tokens(config);
  const torch::Tensor loss =
      dense.loss(tokens.narrow(1, 0, config.seq_length), tokens.narrow(1, 1, config.seq_length));
  loss.backward();

  const Result result = run_on(grid, config, 0, /*drop=*/false, model);
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-12);
  for (const ParamSpec& spec : model.params()) {
    const torch::Tensor& whole_param = reference.at(spec.name);
    EXPECT_TRUE(
        torch::equal(result.weights.at(spec.name), shard_of(whole_param.detach(), spec, grid)))
        << spec.name;
    EXPECT_LT(
        max_difference(result.gradients.at(spec.name), shard_of(whole_param.grad(), spec, grid)),
        1e-12)
        << spec.name;
  }
}

// With dropout there is no plain reference: the control is our own model in one process.
TEST_P(GptParity, DropoutMasksDoNotDependOnTheMesh) {
  if (!world_) return;
  const ProcessGrid grid(world_, topology_), one(alone_, Topology{});
  GptConfig config = tiny_gpt(untied_);
  config.attention_dropout = 0.2;
  config.hidden_dropout = 0.1;
  GptModel whole(config, one, torch::kDouble, 1, kSeed),
      model(config, grid, torch::kDouble, 1, kSeed);
  const Result control = run_on(one, config, 0, /*drop=*/true, whole),
               kept = run_on(one, config, 0, /*drop=*/false, whole);
  const Result result = run_on(grid, config, 0, /*drop=*/true, model);
  EXPECT_NEAR(result.loss, control.loss, 1e-12);
  EXPECT_GT(std::abs(control.loss - kept.loss), 1e-6) << "the masks dropped nothing";
  for (const ParamSpec& spec : model.params()) {
    torch::Tensor whole_gradient = control.gradients.at(spec.name).narrow(0, 0, spec.shape[0]);
    EXPECT_LT(max_difference(result.gradients.at(spec.name), shard_of(whole_gradient, spec, grid)),
              1e-12)
        << spec.name;
  }
}

std::vector<Mesh> meshes() {
  std::vector<Mesh> out;
  for (int tp : {1, 2, 4}) {
    for (int pp : {1, 2, 4}) {
      for (int dp : {1, 2}) {
        if (tp * pp * dp <= 8) {
          for (bool untied : {false, true}) out.emplace_back(tp, pp, dp, untied);
        }
      }
    }
  }
  return out;
}

std::string name_of(const testing::TestParamInfo<Mesh>& info) {
  const auto [tp, pp, dp, untied] = info.param;
  return "tp" + std::to_string(tp) + "pp" + std::to_string(pp) + "dp" + std::to_string(dp) +
         (untied ? "untied" : "tied");
}
INSTANTIATE_TEST_SUITE_P(Meshes, GptParity, testing::ValuesIn(meshes()), name_of);

}  // namespace
}  // namespace anymesh
