// Mixtures of experts: every expert is a tensor there, all of a layer's are one here.

#include "tests/tools/hf_folder.h"
#include "tools/hf/gpt/args.h"

namespace anymesh {
namespace {

HfModel changed(const char* family, const nlohmann::json& changes) {
  Json json = Json::parse(hf_config_text(tiny(family)));
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return read_hf_config(Keys("config.json", json));
}

TEST(HfExperts, AreOnePieceOfTheStack) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
      {"mixtral", {"block_sparse_moe.experts.", ".w1", ".w2", ".w3", "block_sparse_moe.gate"}},
      {"qwen2_moe", {"mlp.experts.", ".gate_proj", ".down_proj", ".up_proj", "mlp.gate"}}};
  for (const auto& [family, parts] : names) {
    std::map<std::string, HfParameter> parameters;
    for (const HfParameter& parameter : hf_parameters(tiny(family)))
      parameters[parameter.name] = parameter;
    const std::string layer = "model.layers.1.";
    for (size_t i = 1; i <= 3; ++i) {
      const HfParameter& stack = parameters.at("3.mlp.experts.w" + std::to_string(i));
      ASSERT_EQ(stack.shape.size(), 3u);
      ASSERT_EQ(stack.theirs.size(), 3u);
      EXPECT_EQ(stack.shape[1] == 12, i == 2);  // down
      for (size_t e = 0; e < 3; ++e) {
        EXPECT_EQ(stack.theirs[e].name,
                  layer + parts[0] + std::to_string(e) + parts[i] + ".weight");
        EXPECT_EQ(stack.theirs[e].shape, (Shape{stack.shape[1], stack.shape[2]}));
      }
    }
    EXPECT_EQ(parameters.at("3.mlp.router.gate.weight").theirs[0].name,
              layer + parts[4] + ".weight");
  }
}

TEST(HfExperts, AreInTheLayersThatTheConfigChooses) {
  struct Case {
    int step;
    std::vector<int> dense, layers;
    int written_step;
    std::vector<int> written_dense;
  };
  for (const auto& [step, dense, layers, written_step, written_dense] :
       {Case{1, {}, {1}, 1, {}},
        {2, {}, {0, 1, 0, 1, 0, 1}, 2, {}},
        {1, {1, 3, 5}, {2}, 1, {1, 3, 5}},
        {3, {5, 9, -1}, {0, 0, 1, 0, 0, 0}, 1, {0, 1, 3, 4, 5}},
        {1, {5, 1, 2, 3, 4}, {6}, 1, {1, 2, 3, 4, 5}},
        {6, {}, {0, 0, 0, 0, 0, 1}, 6, {}}}) {
    const HfModel model = changed(
        "qwen3_moe",
        {{"num_hidden_layers", 6}, {"decoder_sparse_step", step}, {"mlp_only_layers", dense}});
    EXPECT_EQ(model.gpt.moe_layer_freq, layers);
    const Json written = Json::parse(hf_config_text(model));
    EXPECT_EQ(written["decoder_sparse_step"], written_step);
    EXPECT_EQ(written["mlp_only_layers"], Json(written_dense));
    EXPECT_EQ(flags_of_gpt(gpt_of_args(args_of_gpt(model.gpt))), flags_of_gpt(resolved(model.gpt)));
  }
  EXPECT_REFUSES(
      changed("qwen3_moe", {{"num_hidden_layers", 2000000000}, {"decoder_sparse_step", 2}}),
      "'num_hidden_layers' is 2000000000; expected at most 65536");
}

// transformers prefers the name that its class has as another one.
TEST(HfExperts, HaveEitherNameOfTheirNumber) {
  EXPECT_EQ(changed("mixtral", {{"num_experts", 4}}).gpt.num_experts, 4);
  EXPECT_EQ(changed("qwen3_moe", {{"num_local_experts", 4}}).gpt.num_experts, 4);
  for (const char* family : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    for (const char* name : {"num_experts", "num_local_experts"}) {
      Json json = Json::parse(hf_config_text(tiny(family)));
      json.erase("num_experts");
      json.erase("num_local_experts");
      json[name] = 5;
      EXPECT_EQ(read_hf_config(Keys("config.json", json)).gpt.num_experts, 5);
    }
  }
}

// The weights of one expert that add up to 1 are 1. A run may go on from such a model.
TEST(HfExperts, MayBeChosenOneByOne) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    const HfModel model = changed(family, {{"num_experts_per_tok", 1}});
    EXPECT_FALSE(model.gpt.moe_router_pre_softmax);
    GptConfig again = gpt_of_args(args_of_gpt(model.gpt));
    again.vocab_size = model.gpt.vocab_size;
    EXPECT_EQ(&family_of(again, family), model.family);
  }
}

// A model that a run trained goes out as the family that its flags fit.
TEST(HfExperts, ChooseTheFamilyByTheFlags) {
  GptConfig gpt = tiny("llama").gpt;
  gpt.num_experts = 4;
  gpt.ffn_hidden_size = 20;  // of no layer
  gpt.moe_ffn_hidden_size = 10;
  gpt.moe_aux_loss_coeff = 0.1;
  gpt.moe_z_loss_coeff = 0.001;
  EXPECT_STREQ(family_of(gpt).name, "Mixtral");
  EXPECT_EQ(Json::parse(hf_config_text({&family_of(gpt), gpt}))["intermediate_size"], 10);
  gpt.moe_layer_freq = {1, 1};
  EXPECT_STREQ(family_of(gpt).name, "Mixtral");
  gpt.moe_layer_freq = {0, 1};
  EXPECT_REFUSES(family_of(gpt), "\n  Llama: no --num-experts\n",
                 "\n  Mixtral: --ffn-hidden-size 10, --moe-layer-freq 1\n",
                 "\n  Qwen 2 MoE: --moe-shared-expert-intermediate-size "
                 "5632, --moe-shared-expert-gate\n",
                 "\n  Qwen 3 MoE: --qk-layernorm");
  gpt.qk_layernorm = true;
  EXPECT_STREQ(family_of(gpt).name, "Qwen 3 MoE");
  gpt.moe_layer_freq = {1};
  gpt.qk_layernorm_all_heads = true;
  EXPECT_STREQ(family_of(gpt).name, "OLMoE");
  gpt.kv_channels = 4;
  EXPECT_REFUSES(family_of(gpt), "\n  Qwen 3 MoE: no --qk-layernorm-all-heads\n",
                 "\n  OLMoE: --kv-channels 2");
  gpt.kv_channels = 0;
  gpt.qk_layernorm = gpt.qk_layernorm_all_heads = false;
  gpt.add_qkv_bias = true;
  gpt.moe_shared_expert_intermediate_size = 8;
  EXPECT_REFUSES(family_of(gpt), "\n  Qwen 2 MoE: --moe-shared-expert-gate\n");
  gpt.moe_shared_expert_gate = true;
  EXPECT_STREQ(family_of(gpt).name, "Qwen 2 MoE");
  gpt.swiglu = false;
  gpt.geglu = true;
  EXPECT_REFUSES(family_of(gpt), "--swiglu");
}

TEST_F(HfFolder, RefusesExpertsThatAreNotTheConfigs) {
  const HfModel model = tiny("qwen3_moe");
  const NamedTensors all = numbered_tensors(model);
  NamedTensors tensors = all;
  std::erase_if(tensors, [](const auto& named) {
    return named.first == "model.layers.1.mlp.experts.2.up_proj.weight";
  });
  write(model, tensors);
  EXPECT_THAT(refusal(), HasSubstr("has no parameter model.layers.1.mlp.experts.2.up_proj.weight"));
  write(model, all);
  change_config("num_experts", 2);
  EXPECT_THAT(refusal(), HasSubstr("model.layers.0.mlp.gate.weight is [3, 12], expected [2, 12]"));
  change_config("num_experts", 2000000000);
  EXPECT_THAT(refusal(), HasSubstr("too few for the 2000000000 experts of 2 layers"));
  change_config("num_experts", 3);
  change_config("moe_intermediate_size", 5);
  EXPECT_THAT(refusal(), HasSubstr("experts.0.gate_proj.weight is [6, 12], expected [5, 12]"));
  change_config("moe_intermediate_size", 6);
  change_config("num_experts_per_tok", 4);
  EXPECT_THAT(refusal(), HasSubstr("--moe-router-topk (4) must be from 1 to --num-experts (3)"));
  change_config("num_experts_per_tok", 2);
  change_config("mlp_only_layers", {0});
  EXPECT_THAT(refusal(), HasSubstr("has no parameter model.layers.0.mlp.gate_proj.weight"));
}

TEST_F(HfFolder, ExportsNoMoreExpertsThanThereAre) {
  write(tiny("mixtral"));
  import_hf(theirs_, save_, {});
  change_config("num_local_experts", 2000000000);
  const auto refused = [&] {
    export_gpt({.checkpoint = save_, .output = back_}, theirs_ / kHfConfigFile);
  };
  EXPECT_THAT(message_of(refused),
              HasSubstr("2.mlp.experts.w1 is [3, 10, 12], expected one of 2000000000 experts"));
}

}  // namespace
}  // namespace anymesh
