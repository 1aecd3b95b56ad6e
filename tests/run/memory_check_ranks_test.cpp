#include "framework/run/memory_check.h"
#include "framework/zero/memory.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

// Compares the bound with what LibTorch hands out in a forward pass that keeps what backward needs.
RANKS_TEST(MemoryCheck, ALayerKeepsAtLeastTheBound) {
  std::vector<GptConfig> models(4, tiny());
  for (GptConfig& gpt : models) {
    gpt.hidden_size = 64;
    gpt.num_attention_heads = 4;
    gpt.seq_length = gpt.max_position_embeddings = 64;
    gpt.attention_dropout = gpt.hidden_dropout = 0;
  }
  models[1].swiglu = true;
  models[1].num_key_value_heads = 1;
  models[2].relu = true;
  models[2].use_parallel_residual = true;
  models[3].geglu = true;
  models[3].hidden_dropout = 0.1;
  for (const GptConfig& gpt : models) {
    for (const bool recompute : {false, true}) {
      TinyRun run(Topology{}, /*stage=*/0, {.gpt = gpt, .activation_checkpointing = recompute});
      Config config;
      config.engine = TinyRun::config_of(Topology{}, 0, {.gpt = gpt});
      config.engine.activation_checkpointing = recompute;
      const double bound = activation_bytes(config, /*width=*/4, /*is_last_stage=*/true);
      const torch::Tensor tokens = torch::full({1, gpt.seq_length}, 3, torch::kLong);
      const AllocationGauge gauge;
      const torch::Tensor loss = run.model.forward({}, {.inputs = tokens, .labels = tokens});
      const auto peak = static_cast<double>(gauge.bytes().peak);
      EXPECT_LE(bound, peak);
      // Recomputed layers keep their input alone, which is little beside one layer's temporaries.
      EXPECT_GE(bound, peak / (recompute ? 16 : 8)) << "too far below to refuse much";
      config.engine.freeze = {".*"};
      EXPECT_EQ(activation_bytes(config, 4, /*is_last_stage=*/false), 0);
    }
  }
}

// Returns the bytes that a forward pass keeps, after three steps whose losses go to `losses`.
int64_t kept_bytes(GptConfig gpt, const std::vector<std::string>& modules,
                   std::vector<double>& losses) {
  gpt.recompute_modules = modules;
  TinyRun run(Topology{}, /*stage=*/0, {.gpt = gpt});
  for (int step = 0; step < 3; ++step) losses.push_back(run.train(1));
  const torch::Tensor tokens = torch::full({1, gpt.seq_length}, 3, torch::kLong);
  const AllocationGauge gauge;
  const torch::Tensor loss = run.model.forward(
      {}, {.inputs = tokens, .labels = tokens, .dropout = {.seed = 1, .samples = {0}}});
  return gauge.bytes().now;
}

RANKS_TEST(MemoryCheck, RecomputedModulesKeepLessAndChangeNoBit) {
  GptConfig gpt = tiny();
  gpt.seq_length = gpt.max_position_embeddings = 64;
  GptConfig experts = gpt;
  experts.swiglu = true;
  experts.add_bias_linear = false;
  experts.num_experts = 4;
  experts.ffn_hidden_size = 32;
  experts.moe_aux_loss_coeff = 0.1;
  for (const auto& [model, own] : {std::pair(gpt, "mlp"), {experts, "moe"}}) {
    std::vector<double> plain;
    const int64_t all = kept_bytes(model, {}, plain);
    for (const std::vector<std::string>& modules :
         {std::vector<std::string>{"core_attn"}, {own}, {"core_attn", own}}) {
      std::vector<double> losses;
      EXPECT_LT(kept_bytes(model, modules, losses), all) << modules;
      EXPECT_EQ(losses, plain) << modules;
    }
    std::vector<double> losses;  // the other kind of layer has none of it
    EXPECT_EQ(kept_bytes(model, {own == std::string("mlp") ? "moe" : "mlp"}, losses), all);
    EXPECT_EQ(losses, plain);
  }
}

TEST(MemoryCheck, TheBoundIsThatOfARank) {
  Config config;
  config.engine.model = {
      .seq_length = 10, .padded_vocab_size = 50, .layers = 5, .kept_input = 8, .kept_inside = 40};
  config.batch.micro_batch_size = 3;
  EXPECT_EQ(activation_bytes(config, 2, true), 2 * 30 * (5 * 48 + 50));
  config.parallel = {.tp = 2, .pp = 2};  // the smallest stage has two layers
  EXPECT_EQ(activation_bytes(config, 2, false), 2 * 30 * 2 * (8 + 20));
  EXPECT_EQ(activation_bytes(config, 2, true), 2 * 30 * (2 * (8 + 20) + 25));
  config.parallel.sequence_parallel = true;
  EXPECT_EQ(activation_bytes(config, 2, false), 2 * 30 * 2 * (4 + 20));
  config.engine.activation_checkpointing = true;
  EXPECT_EQ(activation_bytes(config, 2, false), 2 * 30 * 2 * 4);
}

}  // namespace
}  // namespace anymesh
