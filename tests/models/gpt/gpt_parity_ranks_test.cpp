// Compares a model on a mesh of up to 8 ranks with the same model in one process in plain
// torch::nn, in float64.

#include <map>
#include <mutex>
#include <tuple>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_model.h"
#include "tests/models/gpt/parity_cases.h"
#include "tests/support/dense_gpt.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"

namespace anymesh {
namespace {

constexpr uint64_t kSeed = 7;

torch::Tensor global_tokens(const GptConfig& c) {
  return (torch::arange(ParityCase::kSamples * (c.seq_length + 1)) * 7919 % 31 % c.vocab_size)
      .view({ParityCase::kSamples, c.seq_length + 1});
}

// Returns micro-batches of `rows` samples, as batch_loader.h deals them out.
std::vector<MicroBatch> batches_of(const GptConfig& c, int rows, const ProcessGrid& grid,
                                   bool drop) {
  const torch::Tensor tokens = global_tokens(c);
  std::vector<MicroBatch> out;
  for (int64_t i = grid.coord.dp * rows; i < ParityCase::kSamples;
       i += grid.topology.dp_size * rows) {
    const torch::Tensor samples = tokens.narrow(0, i, rows);
    MicroBatch& batch = out.emplace_back();
    batch.inputs = samples.narrow(1, 0, c.seq_length).contiguous();
    batch.labels = samples.narrow(1, 1, c.seq_length).contiguous();
    batch.dropout.seed = kSeed;
    for (int64_t row = 0; drop && row < rows; ++row) batch.dropout.samples.push_back(i + row);
  }
  return out;
}

// Gives a router a bias that changes its choices.
void set_bias(const ParamSpec& spec) {
  if (spec.buffer)
    spec.tensor.copy_(0.3 * torch::sin(torch::arange(spec.shape[0], torch::kDouble) + spec.layer));
}

// Returns the parameters with other initial values for the B of adapters, which begin with zeros.
std::vector<ParamSpec> with_adapters(const GptModel& model, const ProcessGrid& grid) {
  std::vector<ParamSpec> params = model.params();
  for (ParamSpec& spec : params) {
    if (!spec.name.ends_with(".lora_B.weight")) continue;
    ParamBuilder drawn({grid.tp}, torch::kDouble, kSeed);
    drawn.add({.name = spec.name, .shape = spec.shape, .split_dim = spec.split_dim},
              Init::normal(0.3));
    spec.initialize = drawn.take()[0].initialize;
  }
  return params;
}

double max_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

struct Result {
  double loss = 0;
  std::map<std::string, torch::Tensor> weights, gradients;  // this rank's slices, by name
};

Result run_on(const ProcessGrid& grid, const GptConfig& config, const ParityCase& test, bool drop,
              GptModel& model) {
  ZeroOptimizer optimizer(with_adapters(model, grid), grid, {.stage = test.zero_stage});
  for (const ParamSpec& spec : model.params()) set_bias(spec);
  model.runner().set_observer(&optimizer);
  PipelineEngine engine(model, grid);
  const auto batches = batches_of(config, test.rows(), grid, drop);
  const double scale = static_cast<double>(test.rows()) / ParityCase::kSamples;
  torch::Tensor loss =
      torch::full({1}, engine.mean_of(engine.forward_backward(batches, scale)), torch::kDouble);
  grid.dp->all_reduce(loss);
  optimizer.reduce_gradients();
  model.runner().set_observer(nullptr);
  Result result{.loss = loss.item<double>() / grid.topology.dp_size};
  for (const auto& group : optimizer.groups()) {
    const auto whole = [&](const ParamSpec& spec, auto part) {
      torch::Tensor sum = torch::zeros(spec.tensor.sizes(), torch::kDouble);
      for (const auto& piece : group.pieces) {
        if (&group.params[piece.param] == &spec)
          sum.view(-1).narrow(0, piece.param_start, piece.numel()).copy_(part(piece));
      }
      group.partitions->all_reduce(sum);
      return sum;
    };
    for (const ParamSpec& spec : group.params) {
      result.weights[spec.name] =
          whole(spec, [](const auto& piece) { return piece.weight.tensor(); });
      result.gradients[spec.name] = whole(spec, [](const auto& piece) { return piece.gradient; });
    }
  }
  return result;
}

void expect_close(const Result& result, const std::map<std::string, torch::Tensor>& gradients,
                  const GptModel& model, const ProcessGrid& grid) {
  for (const ParamSpec& spec : model.params()) {
    if (spec.buffer || spec.frozen()) continue;
    const torch::Tensor whole = gradients.at(spec.name).narrow(0, 0, spec.shape[0]);
    EXPECT_LT(max_difference(result.gradients.at(spec.name), shard_of(whole, spec, grid)), 1e-12)
        << spec.name;
  }
}

// A control is the same on every mesh of a model. The first rank that asks makes it, for all tests.
template <class Key, class Make>
const auto& once(const Key& key, const Make& make) {
  static std::mutex mutex;
  static std::map<Key, decltype(make())> made;
  const std::lock_guard lock(mutex);
  const auto found = made.find(key);
  return found == made.end() ? made.emplace(key, make()).first->second : found->second;
}

struct Plain {
  double loss;
  std::map<std::string, torch::Tensor> params, gradients;  // whole, by name
};

class GptParity : public testing::TestWithParam<ParityCase> {};
struct GptParityRank : RankFixtureOf<GptParity> {
  void SetUp() override {
    topology_ = {.pp_size = test_.pp,
                 .dp_size = test_.dp,
                 .tp_size = test_.tp,
                 .ep_size = test_.ep,
                 .whole_experts = test_.whole_experts};
    config_ = tiny_model(test_);
    world_ = first_ranks(topology_.world_size());
    alone_ = test_world()->split(test_world()->rank(), 0);
  }
  GptModel make_model(const ProcessGrid& grid) const {
    return {config_, grid, torch::kDouble, test_.rows(), kSeed, test_.sequence};
  }
  // Names the values that tiny_model() and rows() take from the test.
  auto model_key() const {
    return std::tuple(test_.architecture, test_.sequence, config_.num_key_value_heads);
  }
  Plain plain_model() const;
  Result one_process() const;
  const ParityCase test_ = GetParam();
  Topology topology_;
  GptConfig config_;
  CommPtr world_, alone_;
};

// Returns the plain model's loss and gradients at the weights that our model starts with.
Plain GptParityRank::plain_model() const {
  const ProcessGrid one(alone_, Topology{});
  GptModel whole = make_model(one);
  DenseGpt dense(config_);
  EXPECT_EQ(whole.params().size(), dense.params.size());
  for (const ParamSpec& spec : with_adapters(whole, one)) {
    c10::NoGradGuard no_grad;
    spec.materialize();
    set_bias(spec);
    dense.params.at(spec.name).copy_(spec.tensor.narrow(0, 0, spec.shape[0]));
  }
  const torch::Tensor tokens = global_tokens(config_);
  const torch::Tensor loss = dense.loss(tokens.narrow(1, 0, config_.seq_length),
                                        tokens.narrow(1, 1, config_.seq_length), test_.rows());
  (loss + dense.routers_loss).backward();
  Plain plain{.loss = loss.item<double>()};
  for (const auto& [name, param] : dense.params) {
    plain.params[name] = param.detach();
    plain.gradients[name] = param.grad();
  }
  return plain;
}

// Returns what our model computes in one process.
Result GptParityRank::one_process() const {
  const ProcessGrid one(alone_, Topology{});
  GptModel whole = make_model(one);
  ParityCase alone = test_;
  alone.zero_stage = 0;  // stage 3 takes the weights, and this model runs twice
  Result control = run_on(one, config_, alone, /*drop=*/true, whole);
  const Result kept = run_on(one, config_, alone, /*drop=*/false, whole);
  EXPECT_GT(std::abs(control.loss - kept.loss), 1e-6) << "the masks dropped nothing";
  return control;
}

RANKS_TEST_P(GptParity, LossAndEveryGradientEqualThePlainModel) {
  if (!world_) return;
  const ProcessGrid grid(world_, topology_);
  const Plain& plain = once(model_key(), [&] { return plain_model(); });
  GptModel model = make_model(grid);
  const Result result = run_on(grid, config_, test_, /*drop=*/false, model);
  EXPECT_NEAR(result.loss, plain.loss, 1e-12);
  expect_close(result, plain.gradients, model, grid);
  for (const ParamSpec& spec : model.params()) {
    if (spec.buffer || spec.frozen()) continue;
    const torch::Tensor& whole_param = plain.params.at(spec.name);
    EXPECT_TRUE(torch::equal(result.weights.at(spec.name), shard_of(whole_param, spec, grid)))
        << spec.name;
  }

  // Runs the explicit form of attention, with a dropout too small to drop anything. Attention is
  // local, so meshes with pp or dp skip this.
  if (topology_.world_size() > topology_.tp_size) return;
  config_.attention_dropout = 1e-15;
  GptModel dropping = make_model(grid);
  const Result dropped = run_on(grid, config_, test_, /*drop=*/true, dropping);
  EXPECT_NEAR(dropped.loss, plain.loss, 1e-12);
  expect_close(dropped, plain.gradients, dropping, grid);
}

// With dropout there is no plain reference, so the control is our own model in one process.
class GptDropout : public testing::TestWithParam<ParityCase> {};
struct GptDropoutRank : GptParityRank {};

RANKS_TEST_P(GptDropout, MasksDoNotDependOnTheMesh) {
  if (!world_) return;
  config_.attention_dropout = 0.2;
  config_.hidden_dropout = 0.1;
  config_.lora_dropout = 0.3;
  const Result& control = once(model_key(), [&] { return one_process(); });
  const ProcessGrid grid(world_, topology_);
  GptModel model = make_model(grid);
  const Result result = run_on(grid, config_, test_, /*drop=*/true, model);
  EXPECT_NEAR(result.loss, control.loss, 1e-12);
  expect_close(result, control.gradients, model, grid);
}

INSTANTIATE_TEST_SUITE_P(Meshes, GptParity, testing::ValuesIn(parity_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Meshes, GptDropout, testing::ValuesIn(dropout_cases()), name_of_case);

}  // namespace
}  // namespace anymesh
