// Compares a model on a mesh of up to 8 ranks with the same model in one process in plain
// torch::nn, in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/dense_gpt.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr int kSamples = 8;
constexpr uint64_t kSeed = 7;

struct ParityCase {
  int tp, pp, dp;
  std::string architecture;
  bool sequence = false;  // sequence parallelism
  int zero_stage = 0;
  int ep = 1;
  bool whole_experts = false;                    // tp does not cut them
  int rows() const { return sequence ? 2 : 1; }  // per micro-batch
};

struct Architecture {
  const char* name;
  void (*set)(GptConfig& c);
};

void llama(GptConfig& c) {
  c.untie_embeddings_and_output_weights = c.use_rotary_position_embeddings = c.swiglu = true;
  c.ffn_hidden_size = 12;
  c.normalization = "rmsnorm";
  c.add_bias_linear = false;
  c.num_key_value_heads = 2;
}

void documents(GptConfig& c) {
  c.reset_position_ids = c.reset_attention_mask = c.eod_mask_loss = true;
  c.eod_token = 3;  // one token in ten
}

// "gpt" is the one without options. Together these have every option.
const Architecture kArchitectures[] = {
    {"gpt", [](GptConfig&) {}},
    {"untied", [](GptConfig& c) { c.untie_embeddings_and_output_weights = true; }},
    {"llama", llama},
    {"swiglu",
     [](GptConfig& c) {
       c.use_rotary_position_embeddings = c.swiglu = true;
       c.ffn_hidden_size = 12;
       c.rotary_percent = 0.5;
     }},
    {"bloom",
     [](GptConfig& c) {
       c.position_embedding_type = "alibi";
       c.embed_layernorm = true;
       c.hidden_size = 24;
       c.num_attention_heads = 12;  // no power of two, so the slopes differ
     }},
    {"mistral",
     [](GptConfig& c) {
       llama(c);
       c.window_size = "2,0";
     }},
    {"qwen2",
     [](GptConfig& c) {
       llama(c);
       c.add_qkv_bias = true;
     }},
    {"qwen3",
     [](GptConfig& c) {
       llama(c);
       c.qk_layernorm = true;
       c.kv_channels = 6;
       c.add_attention_linear_bias = true;
     }},
    {"olmoe",
     [](GptConfig& c) {
       llama(c);
       c.qk_layernorm = c.qk_layernorm_all_heads = c.apply_layernorm_1p = true;
       c.kv_channels = 6;
       c.num_experts = 3;
       c.moe_router_pre_softmax = true;
     }},
    {"neox",
     [](GptConfig& c) {
       c.position_embedding_type = "rope";
       c.rotary_percent = 0.5;
       c.use_parallel_residual = c.untie_embeddings_and_output_weights = true;
       c.bias_gelu_fusion = false;
     }},
    {"gemma",
     [](GptConfig& c) {
       llama(c);
       c.swiglu = c.untie_embeddings_and_output_weights = false;
       c.geglu = c.apply_layernorm_1p = c.apply_embedding_scaling = c.qk_layernorm = true;
       c.kv_channels = 10;
     }},
    {"opt",
     [](GptConfig& c) {
       c.relu = true;
       c.position_embedding_offset = 2;
     }},
    {"alibi",
     [](GptConfig& c) {
       c.position_embedding_type = "alibi";
       c.window_size = "1,0";
     }},
    {"experts",
     [](GptConfig& c) {
       llama(c);
       c.num_experts = 6;
       c.moe_ffn_hidden_size = 8;
       c.moe_aux_loss_coeff = 0.3;
       c.moe_z_loss_coeff = 0.01;
     }},
    {"expertsmany",
     [](GptConfig& c) {
       llama(c);
       c.moe_shared_expert_gate = true;
       c.num_experts = 8;
       c.moe_router_topk = 3;
       c.moe_shared_expert_intermediate_size = 20;
       c.moe_aux_loss_coeff = 0.3;
     }},
    {"expertsbiased",
     [](GptConfig& c) {
       llama(c);
       c.moe_router_score_function = "sigmoid";
       c.moe_router_enable_expert_bias = true;
       c.moe_router_topk_scaling_factor = 2.5;
       c.num_experts = 6;
       c.moe_ffn_hidden_size = 8;
       c.moe_aux_loss_coeff = 0.3;
     }},
    {"expertsshared",
     [](GptConfig& c) {
       llama(c);
       c.swiglu = false;
       c.geglu = c.moe_router_pre_softmax = c.moe_shared_expert_gate = true;
       c.num_experts = c.moe_router_topk = 3;
       c.moe_layer_freq = {0, 1, 1};
       c.moe_shared_expert_intermediate_size = 20;
       c.moe_aux_loss_coeff = 0.2;
     }},
    {"documents", documents},
    {"documentsllama",
     [](GptConfig& c) {
       llama(c);
       documents(c);
     }},
    {"documentsalibi",
     [](GptConfig& c) {
       documents(c);
       c.position_embedding_type = "alibi";
       c.window_size = "3,0";
       c.reset_position_ids = false;
     }},
};

// Grouped heads are at least as many as tp.
GptConfig tiny_model(const ParityCase& test) {
  const auto& [tp, pp, dp, architecture, sequence, zero_stage, ep, whole_experts] = test;
  GptConfig c;
  c.num_layers = 5;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.seq_length = sequence ? 8 : 6;
  c.max_position_embeddings = 9;
  c.make_vocab_size_divisible_by = 3;
  c.vocab_size = 17;
  c.init_method_std = 0.2;
  c.attention_dropout = c.hidden_dropout = 0;
  std::ranges::find(kArchitectures, architecture, &Architecture::name)->set(c);
  if (architecture != "gpt" && architecture != "untied") c.num_layers = 3;
  if (c.num_key_value_heads > 0) c.num_key_value_heads = std::max(c.num_key_value_heads, tp);
  return c;
}

torch::Tensor global_tokens(const GptConfig& c) {
  return (torch::arange(kSamples * (c.seq_length + 1)) * 7919 % 31 % c.vocab_size)
      .view({kSamples, c.seq_length + 1});
}

// Returns micro-batches of `rows` samples, as batch_loader.h deals them out.
std::vector<MicroBatch> batches_of(const GptConfig& c, int rows, const ProcessGrid& grid,
                                   bool drop) {
  const torch::Tensor tokens = global_tokens(c);
  std::vector<MicroBatch> out;
  for (int64_t i = grid.coord.dp * rows; i < kSamples; i += grid.topology.dp_size * rows) {
    const torch::Tensor samples = tokens.narrow(0, i, rows);
    MicroBatch& batch = out.emplace_back();
    batch.tokens = samples.narrow(1, 0, c.seq_length).contiguous();
    batch.labels = samples.narrow(1, 1, c.seq_length).contiguous();
    batch.dropout.seed = kSeed;
    for (int64_t row = 0; drop && row < rows; ++row) batch.dropout.samples.push_back(i + row);
  }
  return out;
}

// Returns this tp rank's shard of a whole tensor, vocabulary padding included.
torch::Tensor shard_of(const torch::Tensor& whole, const ParamSpec& spec, const ProcessGrid& grid) {
  if (spec.experts) {
    const torch::Tensor own = whole.chunk(
        grid.topology.ep_size, 0)[static_cast<size_t>(grid.topology.ep_rank_of(grid.coord))];
    if (spec.split_dim < 0) return own;
    return own.chunk(grid.topology.tp_size, spec.split_dim)[static_cast<size_t>(grid.coord.tp)];
  }
  if (spec.split_dim < 0) return whole;
  if (spec.sub_params > 1) {
    std::vector<torch::Tensor> shards;
    for (const torch::Tensor& part : whole.chunk(spec.sub_params, spec.split_dim)) {
      shards.push_back(
          part.chunk(grid.topology.tp_size, spec.split_dim)[static_cast<size_t>(grid.coord.tp)]);
    }
    return torch::cat(shards, spec.split_dim);
  }
  const int64_t n = spec.tensor.size(spec.split_dim), begin = grid.coord.tp * n;
  torch::Tensor shard = torch::zeros(spec.tensor.sizes(), torch::kDouble);
  const int64_t real = std::clamp<int64_t>(whole.size(spec.split_dim) - begin, 0, n);
  if (real > 0)
    shard.narrow(spec.split_dim, 0, real).copy_(whole.narrow(spec.split_dim, begin, real));
  return shard;
}

// Gives a router a bias that changes its choices.
void set_bias(const ParamSpec& spec) {
  if (spec.buffer)
    spec.tensor.copy_(0.3 * torch::sin(torch::arange(spec.shape[0], torch::kDouble) + spec.layer));
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
  ZeroOptimizer optimizer(model.params(), grid, {.stage = test.zero_stage});
  for (const ParamSpec& spec : model.params()) set_bias(spec);
  model.runner().set_observer(&optimizer);
  PipelineEngine engine(model, grid);
  const auto batches = batches_of(config, test.rows(), grid, drop);
  const double scale = static_cast<double>(test.rows()) / kSamples;
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
    if (spec.buffer) continue;
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
  for (const ParamSpec& spec : whole.params()) {
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
    if (spec.buffer) continue;
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
  const Result& control = once(model_key(), [&] { return one_process(); });
  const ProcessGrid grid(world_, topology_);
  GptModel model = make_model(grid);
  const Result result = run_on(grid, config_, test_, /*drop=*/true, model);
  EXPECT_NEAR(result.loss, control.loss, 1e-12);
  expect_close(result, control.gradients, model, grid);
}

std::vector<ParityCase> cases(const std::vector<std::string>& architectures, int max_pp) {
  std::vector<ParityCase> out;
  for (int tp : {1, 2, 4}) {
    for (int pp = 1; pp <= max_pp; pp *= 2) {
      for (int dp : {1, 2}) {
        if (tp * pp * dp > 8) continue;
        for (const std::string& architecture : architectures) {
          out.push_back({tp, pp, dp, architecture});
        }
      }
    }
  }
  return out;
}

// The families have no communication of their own, so dp goes along with pp.
std::vector<ParityCase> family_cases() {
  std::vector<ParityCase> out;
  for (const ParityCase& test : cases({"mistral", "qwen2", "qwen3", "neox", "gemma", "opt", "alibi",
                                       "experts", "expertsbiased", "expertsshared", "olmoe",
                                       "documents", "documentsllama", "documentsalibi"},
                                      2))
    if (test.dp == test.pp) out.push_back(test);
  return out;
}

// Cases with the sequence cut, at the ZeRO stages that differ most. At tp 1 there is nothing to
// cut.
std::vector<ParityCase> sequence_cases() {
  std::vector<ParityCase> out;
  for (ParityCase test : cases({"gpt", "untied", "llama", "bloom", "gemma", "neox", "documents",
                                "experts", "expertsshared", "olmoe"},
                               2)) {
    if (test.tp == 1 && test.pp == 2) continue;
    test.sequence = true;
    out.push_back(test);
    test.zero_stage = 3;
    if (test.dp > 1) out.push_back(test);
  }
  return out;
}

// Experts over ranks, cut by tp or whole, at the ZeRO stages that differ most.
std::vector<ParityCase> expert_cases() {
  std::vector<ParityCase> out;
  for (const int tp : {1, 2})
    for (const int pp : {1, 2})
      for (const int dp : {1, 2, 4, 8})
        for (const int ep : {1, 2, 4})
          for (const bool whole : {false, true})
            for (const int stage : {0, 3}) {
              const int ranks = whole ? dp * tp : dp;
              const bool new_mesh = ep > 1 || whole;  // the others are Families and Sequence
              if (tp * pp * dp > 8 || ranks % ep != 0 || !new_mesh || (whole && tp == 1)) continue;
              ParityCase test{tp, pp, dp,
                              ep == 4    ? "expertsmany"
                              : dp == tp ? "expertsbiased"
                                         : "experts"};
              test.sequence = whole || (tp == 2 && stage == 3);
              test.zero_stage = stage;
              test.ep = ep;
              test.whole_experts = whole;
              if (test.rows() * dp > kSamples) continue;
              out.push_back(test);
            }
  return out;
}

std::vector<ParityCase> all_cases() {
  std::vector<ParityCase> all;
  for (const std::vector<ParityCase>& some :
       {cases({"gpt", "untied"}, 4), cases({"llama", "swiglu", "bloom"}, 2), family_cases(),
        expert_cases(), sequence_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

using Part = std::vector<int>;

int architecture_of(const ParityCase& test) {
  return static_cast<int>(
      std::ranges::find(kArchitectures, test.architecture, &Architecture::name) - kArchitectures);
}

// Returns each pair of a case's values, and its mesh with its options.
std::set<Part> pairs_of(const ParityCase& test) {
  const Part values = {test.tp,       test.pp,         test.dp, architecture_of(test),
                       test.sequence, test.zero_stage, test.ep, test.whole_experts};
  Part mesh = values;
  mesh[3] = -1;
  std::set<Part> parts = {mesh};
  for (int i = 0; i < std::ssize(values); ++i)
    for (int j = 0; j < i; ++j)
      parts.insert({i, j, values[static_cast<size_t>(i)], values[static_cast<size_t>(j)]});
  return parts;
}

// Adds each architecture at each tp, with and without its sequence cut, and with the explicit form
// of attention.
std::set<Part> pairs_and_shards_of(const ParityCase& test) {
  std::set<Part> parts = pairs_of(test);
  parts.insert({architecture_of(test), test.tp, test.sequence});
  if (test.pp * test.dp == 1) parts.insert({architecture_of(test), test.tp});
  return parts;
}

// Returns some of the cases, which have every part that all have. Those with most new parts come
// first.
std::vector<ParityCase> covering(std::set<Part> (*parts_of)(const ParityCase&)) {
  std::vector<std::pair<ParityCase, std::set<Part>>> left;
  for (const ParityCase& test : all_cases()) left.emplace_back(test, parts_of(test));
  std::vector<ParityCase> chosen;
  std::set<Part> covered;
  for (size_t least = 32; least > 0; --least) {
    for (auto& [test, parts] : left) {
      std::erase_if(parts, [&](const Part& part) { return covered.contains(part); });
      if (parts.size() < least) continue;
      covered.merge(parts);
      chosen.push_back(test);
    }
  }
  return chosen;
}

std::string name_of_case(const testing::TestParamInfo<ParityCase>& info) {
  const auto& [tp, pp, dp, architecture, sequence, zero_stage, ep, whole_experts] = info.param;
  return "tp" + std::to_string(tp) + "pp" + std::to_string(pp) + "dp" + std::to_string(dp) +
         architecture + (sequence ? "sequence" : "") +
         (zero_stage > 0 ? "zero" + std::to_string(zero_stage) : "") +
         (ep > 1 ? "ep" + std::to_string(ep) : "") + (whole_experts ? "whole" : "");
}
INSTANTIATE_TEST_SUITE_P(Meshes, GptParity, testing::ValuesIn(covering(pairs_and_shards_of)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Meshes, GptDropout, testing::ValuesIn(covering(pairs_of)), name_of_case);

}  // namespace
}  // namespace anymesh
