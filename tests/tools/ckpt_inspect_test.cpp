#include "framework/format/torch_file.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

TEST_F(Ckpt, InspectShowsMeshFilesAndCuts) {
  const Outcome outcome = inspect(fixture(kMesh) / "checkpoint");
  EXPECT_EQ(outcome.code, 0);
  size_t at = 0;
  for (const char* part :
       {"ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1\n  iteration 10, 80 samples consumed, "
        "bf16\n  52 parameters of 234880 elements; 20 files of 4021220 bytes\n",
        "\n  parameter ", "\nfiles\n"}) {
    at = outcome.text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << outcome.text;
  }
  for (const char* part : {"  layer_02-model_00-model_states.pt  ",
                           "input_layernorm.weight: bfloat16 tensor of shape [64]",
                           "param_shapes: list of 2", "... and "})
    EXPECT_TRUE(outcome.says(part)) << part << "\n" << outcome.text;
  const auto line_of = [&](const std::string& name) {
    const size_t at = outcome.text.rfind("  " + name + " ");
    return at == std::string::npos ? "" : outcome.text.substr(at, outcome.text.find('\n', at) - at);
  };
  EXPECT_THAT(line_of("3.mlp.dense_4h_to_h.weight"), HasSubstr("float32 [64, 256]"));
  EXPECT_THAT(line_of("3.mlp.dense_4h_to_h.weight"), HasSubstr("tp along dim 1; pp 0; step 10"));
  EXPECT_THAT(line_of("6.bias"), HasSubstr("replicated; pp 1; step 10"));
  EXPECT_THAT(line_of("tied_modules.embed.word_embeddings.weight"),
              HasSubstr("tp along dim 0, vocabulary padded to 512; pp 0, 1"));
}

TEST_F(Ckpt, InspectShowsAllWhenAsked) {
  const Outcome all = inspect(tag_of("z3-fp32-dp3-frozen"), true);
  EXPECT_FALSE(all.says("--all"));
  EXPECT_TRUE(all.says("fp32_flat_groups"));
  EXPECT_TRUE(inspect(fixture("z3-fp32-dp3-frozen") / "universal").says("universal checkpoint"));
}

TEST_F(Ckpt, InspectShowsWhatItCanOfADamagedCheckpoint) {
  const fs::path tag = copy_of(kMesh, folder_);
  fs::resize_file(tag / model_states_file(1), 100);
  const Outcome outcome = inspect(tag);
  expect_problem(outcome, "  mp_rank_02_model_states.pt  ");
  expect_problem(outcome, "the parameters cannot be listed: ");
}

TEST_F(Ckpt, ReadsSafetensors) {
  write_safetensors(folder_ / "model.safetensors", {{"a.weight", float_tensor({2}, {1, 2})}});
  EXPECT_EQ(verify(folder_).code, 0);
  const Outcome shown = inspect(folder_);
  expect_well(shown, "    a.weight: float32 tensor of shape [2]\n");
  write_torch_file(folder_ / "w.bin", Value::dict({{"a.weight", float_tensor({2}, {1, 3})}}));
  expect_problem(diff(folder_, folder_ / "w.bin"), "a.weight fp32: differs in 1 of 2 elements");
  fs::resize_file(folder_ / "model.safetensors", fs::file_size(folder_ / "model.safetensors") - 1);
  expect_problem(verify(folder_), "safetensors: found ");
}

}  // namespace
}  // namespace anymesh
