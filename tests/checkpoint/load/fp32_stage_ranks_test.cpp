// Calls load_state_dict_from_zero_checkpoint for the stages of a GPT, on other meshes than the
// checkpoint's.

#include "framework/checkpoint/load/fp32.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpt_flags.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"

namespace anymesh {
namespace {

// Returns the configuration of Megatron-DeepSpeed's fixtures.
GptConfig config_of(bool llama) {
  GptConfig c;
  c.num_layers = 4;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.seq_length = c.max_position_embeddings = 32;
  c.vocab_size = 512;
  c.make_vocab_size_divisible_by = 100;  // other than theirs: rows of padding
  return !llama ? c
                : with_flags(c,
                             "--ffn-hidden-size 128 --num-key-value-heads 2 --swiglu "
                             "--use-rotary-position-embeddings --disable-bias-linear "
                             "--untie-embeddings-and-output-weights --normalization rmsnorm");
}

RANKS_TEST(LoadStateDict, FillsTheStagesOfAnyMesh) {
  struct Case {
    const char* fixture;
    bool llama;
    Topology topology;
  };
  const Case cases[] = {{"z1-bf16-tp2pp2dp1", false, {.tp_size = 4}},
                        {"z1-bf16-tp2pp2dp1", false, {.pp_size = 4}},
                        {"z3-bf16-dp2-nopipe", false, {.pp_size = 2, .tp_size = 2}},
                        {"z1-bf16-tp2pp1dp1-llama", true, {.pp_size = 2, .tp_size = 2}}};
  for (const auto& [name, llama, topology] : cases) {
    const ProcessGrid grid(test_world(), topology);
    const auto checkpoint = fixture(name) / "checkpoint";
    const Fp32StateDict weights =
        get_fp32_state_dict_from_zero_checkpoint(checkpoint, "", false, /*lazy_mode=*/true);
    for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
      GptModel model(config_of(llama), grid, dtype, /*micro_batch_size=*/1, /*seed=*/1);
      load_state_dict_from_zero_checkpoint(model, grid, checkpoint);
      ASSERT_FALSE(model.params().empty());
      for (const ParamSpec& spec : model.params()) {
        const std::string& key = weights.contains(spec.name) ? spec.name : spec.other_name;
        const torch::Tensor expected = shard_of(weights[key].contiguous(), spec, grid);
        EXPECT_TRUE(torch::equal(spec.tensor, expected.to(dtype))) << name << ": " << spec.name;
      }
    }
  }
}

RANKS_TEST(LoadStateDict, RefusesAnotherModel) {
  const ProcessGrid grid(test_world(), {.tp_size = 4});
  GptConfig config = config_of(false);
  config.hidden_size = 32;
  GptModel model(config, grid, torch::kFloat, 1, 1);
  const std::string message = message_of([&] {
    load_state_dict_from_zero_checkpoint(model, grid, fixture("z1-bf16-tp2pp2dp1") / "checkpoint");
  });
  EXPECT_THAT(message, HasSubstr("this model's [512, 32]"));
}

}  // namespace
}  // namespace anymesh
