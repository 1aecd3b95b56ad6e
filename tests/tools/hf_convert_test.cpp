
#include <nlohmann/json.hpp>

#include "framework/format/folder.h"
#include "tests/tools/hf_folder.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/parameters.h"

namespace anymesh {
namespace {

TEST_F(HfFolder, GoesInAndOutAgain) {
  for (const Family* family : families()) {
    const HfModel model = tiny(family->model_type);
    write(model);
    const HfImport in = import_hf(theirs_, save_, {});
    EXPECT_EQ(read_tag(save_ / kLatestUniversalFile), "global_step0_universal");
    const HfExport out = export_gpt({.checkpoint = save_, .output = back_});
    EXPECT_EQ(out.model, family->name);
    EXPECT_EQ(flags_of_gpt(in.model.gpt), flags_of_gpt(model.gpt));
    expect_same(theirs_, back_);
    EXPECT_EQ(read_file(theirs_ / kHfConfigFile), read_file(back_ / kHfConfigFile));
    export_gpt({.checkpoint = save_, .output = back_, .max_shard_size = 1000});
    EXPECT_GT(open_checkpoint(back_, 1).names().size(), 10u);
    EXPECT_FALSE(fs::exists(back_ / "model.safetensors"));
    expect_same(theirs_, back_);
  }
}

TEST_F(HfFolder, HalfPrecisionAndTheBareModelsNames) {
  const HfModel model = tiny("gpt2");
  NamedTensors tensors = numbered_tensors(model);
  write(model, tensors);
  import_hf(theirs_, folder_ / "fp32", {});
  for (auto& [name, tensor] : tensors) {
    std::vector<uint16_t> halves;
    for (const float value : floats(tensor))
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    tensor = {DType::kBFloat16, tensor.shape, false, bytes_of(halves)};
    name = name.substr(std::string("transformer.").size());
  }
  tensors.emplace_back("h.0.attn.bias", float_tensor({1, 1, 1, 1}, {1}));  // a mask
  tensors.emplace_back("lm_head.weight", tensors[0].second);               // tied: wte's
  write(model, tensors);
  import_hf(theirs_, save_, {});
  expect_same(folder_ / "fp32", save_);
}

TEST_F(HfFolder, RefusesWeightsThatAreNotTheConfigs) {
  const HfModel model = tiny("llama");
  const NamedTensors all = numbered_tensors(model);
  NamedTensors tensors = all;
  std::erase_if(tensors, [](const auto& named) {
    return named.first == "model.layers.1.self_attn.v_proj.weight";
  });
  write(model, tensors);
  EXPECT_THAT(refusal(), HasSubstr("has no parameter model.layers.1.self_attn.v_proj.weight"));
  tensors = all;
  tensors.emplace_back("model.layers.1.mlp.router.weight", float_tensor({1}, {1}));
  write(model, tensors);
  EXPECT_THAT(refusal(), HasSubstr("has model.layers.1.mlp.router.weight, which no Llama"));
  write(model, all);
  change_config("intermediate_size", 11);
  EXPECT_THAT(refusal(),
              HasSubstr("model.layers.0.mlp.gate_proj.weight is [10, 12], expected [11, 12]"));
  change_config("intermediate_size", 10);
  change_config("num_hidden_layers", 2000000000);
  EXPECT_THAT(refusal(), HasSubstr("too few for the 2000000000 layers"));
  change_config("num_hidden_layers", 1);
  EXPECT_THAT(refusal(), HasSubstr("model.layers.1."));
}

TEST_F(HfFolder, RefusesFilesThatAreNotThere) {
  EXPECT_THAT(refusal(), HasSubstr(theirs_.string() + ": no such folder"));
  fs::create_directory(theirs_);
  EXPECT_THAT(refusal(), HasSubstr("config.json"));
  const HfModel model = tiny("bloom");
  write(model);
  fs::rename(theirs_ / "model.safetensors", theirs_ / "model-00001-of-00002.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("is no checkpoint"));
  nlohmann::json map;
  for (const auto& [name, tensor] : numbered_tensors(model))
    map[name] = name == "transformer.ln_f.bias" ? "model-00002-of-00002.safetensors"
                                                : "model-00001-of-00002.safetensors";
  const fs::path index = theirs_ / "model.safetensors.index.json";
  write_file(index, nlohmann::json{{"weight_map", map}}.dump());
  EXPECT_THAT(refusal(), HasSubstr("model-00002-of-00002.safetensors"));
  write_file(index, R"({"weight_map": {"transformer.ln_f.bias": "../model.safetensors"}})");
  EXPECT_THAT(refusal(), HasSubstr("is no file beside it"));
  write_file(theirs_ / kHfConfigFile, "[1");
  EXPECT_THAT(refusal(), HasSubstr("is no JSON object"));
  const std::string deep = std::string(30000, '[') + std::string(30000, ']');
  write_file(theirs_ / kHfConfigFile, R"({"n_embd": )" + deep + "}");
  EXPECT_THAT(refusal(), HasSubstr("nests deeper than 128 levels"));
}

TEST_F(HfFolder, RefusesByKeyWhatOurModelIsNot) {
  const std::vector<std::tuple<const char*, std::string, nlohmann::json, std::string>> cases = {
      {"gpt2", "model_type", "mamba", "one of gpt2, llama, bloom, mistral"},
      {"gpt2", "model_type", "phi", "its head has a bias"},
      {"gpt2", "model_type", nullptr, "missing"},
      {"gpt2", "n_embd", "12", "an integer"},
      {"gpt2", "n_embd", -12, "an integer"},
      {"gpt2", "n_embd", 4294967308, "an integer"},
      {"gpt2", "vocab_size", nullptr, "missing"},
      {"gpt2", "activation_function", "silu", "\"gelu_new\""},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true, "false"},
      {"gpt2", "embd_pdrop", 0.3, "resid_pdrop"},
      {"gpt2", "quantization_config", {{"bits", 4}}, "fp32, bf16 or fp16"},
      {"llama", "hidden_act", "gelu", "\"silu\""},
      {"llama", "head_dim", 0, "from 1 to"},
      {"llama", "rope_theta", 1e300, "a number from 1 to 3.4e38"},
      {"llama", "rope_theta", 0.5, "a number from 1 to"},
      {"llama", "rope_parameters", {{"full_attention", {{"rope_theta", 5}}}}, "one rotation"},
      {"llama", "partial_rotary_factor", 0.5, "1"},
      {"bloom", "apply_residual_connection_post_layernorm", true, "false"},
      {"qwen2", "max_window_layers", 1, "windows in all layers or in none"},
      {"qwen2", "layer_types", {"sliding_attention", "full_attention"}, "in all layers or in none"},
      {"qwen2", "layer_types", {"full_attention"}, "for each of 2 layers"},
      {"mistral",
       "layer_types",
       {"sliding_attention", "full_attention"},
       "in all layers or in none"},
      {"mistral", "layer_types", {"chunked_attention", "full_attention"}, "\"sliding_attention\""},
      {"gemma", "hidden_activation", "gelu", "\"gelu_pytorch_tanh\""},
      {"gemma", "hidden_act", "silu", "\"gelu_pytorch_tanh\""},
      {"gemma", "hidden_act", "gelu_python", "\"gelu_pytorch_tanh\""},
      {"gpt_neox", "attention_bias", false, "true"},
      {"opt", "do_layer_norm_before", false, "true"},
      {"opt", "word_embed_proj_dim", 6, "12"},
      {"phi3", "rope_scaling", {{"type", "longrope"}}, "\"yarn\" or \"dynamic\""},
      {"phi3", "rope_scaling", {{"type", "yarn"}, {"factor", 4}}, "\"yarn\" as \"longrope\""},
      {"phi3", "rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}, "no scaling"},
      {"starcoder2", "use_bias", false, "true"},
      {"falcon", "new_decoder_architecture", false, "true"},
      {"mixtral", "num_local_experts", 1, "at least 2"},
      {"mixtral", "num_experts_per_tok", 0, "an integer"},
      {"qwen2_moe", "use_sliding_window", true, "false"},
      {"qwen2_moe", "layer_types", {"full_attention", "sliding_attention"}, "alone"},
      {"qwen2_moe", "shared_expert_intermediate_size", 0, "an integer"},
      {"qwen2_moe", "norm_topk_prob", 1, "true or false"},
      {"qwen3_moe", "mlp_only_layers", {0, 1}, "at least one layer with experts"},
      {"qwen3_moe", "mlp_only_layers", 1, "a list of layers"},
      {"qwen3_moe", "mlp_only_layers", {"1"}, "a list of layers"},
      {"qwen3_moe", "decoder_sparse_step", 0, "an integer"},
      {"olmoe", "clip_qkv", 8.0, "null"},
      {"olmoe", "head_dim", 4, "hidden_size / num_attention_heads"}};
  for (const auto& [family, key, value, expected] : cases) {
    write(tiny(family));
    change_config(key, value);
    EXPECT_THAT(refusal(), HasSubstrs("config.json: '" + key, expected));
  }
  write(tiny("llama"));
  change_config("num_key_value_heads", 4);
  EXPECT_THAT(refusal(), HasSubstr("--num-key-value-heads (4) must be positive and divide"));
}

TEST_F(HfFolder, RefusesScaledPositionsThatNoFlagSays) {
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  const auto with = [&](const char* key, nlohmann::json value) {
    nlohmann::json scaling = llama3;
    scaling[key] = std::move(value);
    return scaling;
  };
  const std::vector<std::pair<nlohmann::json, std::string>> cases = {
      {"llama3", "'rope_scaling' is \"llama3\"; expected an object"},
      {with("rope_type", "su"), "'rope_scaling.rope_type' is \"su\"; expected \"default\""},
      {{{"type", "dynamic"}}, "'rope_scaling.factor' is missing; expected a number"},
      {{{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 4}, {"mscale", 1}},
       "'rope_scaling.mscale' is 1; expected null"},
      {with("rope_type", 8), "'rope_scaling.rope_type' is 8"},
      {with("type", "linear"), "'rope_scaling.type' is \"linear\"; expected that of rope_type"},
      {with("factor", nullptr), "'rope_scaling.factor' is missing; expected a number"},
      {with("factor", 0.5), "--rope-scaling-factor (0.5) must be at least 1"},
      {with("low_freq_factor", 2.0), "'rope_scaling.low_freq_factor' is 2.0; expected 1, since"},
      {with("high_freq_factor", "4"), "'rope_scaling.high_freq_factor' is \"4\"; expected 4"},
      {with("original_max_position_embeddings", nullptr), "is missing; expected 8192"},
      {with("partial_rotary_factor", 0.5), "'partial_rotary_factor' is 0.5; expected 1"},
      {{{"type", "linear"}}, "'rope_scaling.factor' is missing; expected a number"},
      {{{"type", "linear"}, {"factor", 0.5}},
       "--rotary-seq-len-interpolation-factor (0.5) must be at least 1"}};
  for (const auto& [scaling, expected] : cases) {
    write(tiny("llama"));
    change_config("rope_scaling", scaling);
    EXPECT_THAT(refusal(), HasSubstr(expected));
  }
  change_config("rope_scaling", llama3);
  change_config("original_max_position_embeddings", 4096);  // transformers prefers this key
  EXPECT_THAT(refusal(), HasSubstr("'original_max_position_embeddings' is 4096; expected 8192"));
  change_config("rope_scaling", {{"type", "yarn"}, {"factor", 2}});
  EXPECT_EQ(read_hf_config(theirs_ / kHfConfigFile).gpt.original_max_position_embeddings, 4096);
  change_config("original_max_position_embeddings", nullptr);
  EXPECT_EQ(read_hf_config(theirs_ / kHfConfigFile).gpt.original_max_position_embeddings, 8);
}

TEST_F(HfFolder, ScaledPositionsGoInAndOutAgain) {
  HfModel llama3 = tiny("llama"), linear = llama3, yarn = llama3, dynamic = llama3;
  llama3.gpt.use_rope_scaling = true;
  llama3.gpt.rope_scaling_factor = 32;
  llama3.gpt.rope_theta = 3580165449;  // more than 32 bits have
  linear.gpt.rope_theta = 1234567.5;
  linear.gpt.rotary_seq_len_interpolation_factor = 2.5;
  yarn.gpt.rope_type = "yarn";
  dynamic.gpt.rope_type = "dynamic";
  yarn.gpt.rotary_scaling_factor = dynamic.gpt.rotary_scaling_factor = 2.5;
  yarn.gpt.original_max_position_embeddings = 5;
  dynamic.gpt.original_max_position_embeddings = 8;
  for (const auto& [model, flags] :
       {std::pair(llama3,
                  "--rotary-position-embeddings-theta 3580165449 --use-rope-scaling "
                  "--rope-scaling-factor 32"),
        std::pair(linear,
                  "--rotary-position-embeddings-theta 1234567.5 "
                  "--rotary-seq-len-interpolation-factor 2.5"),
        std::pair(yarn, "--rope-type yarn --rotary-scaling-factor 2.5"),
        std::pair(dynamic, "--rope-type dynamic --rotary-scaling-factor 2.5")}) {
    write(model);
    EXPECT_THAT(flags_of_gpt(import_hf(theirs_, save_, {}).model.gpt), HasSubstr(flags));
    export_gpt({.checkpoint = save_, .output = back_});
    EXPECT_EQ(read_file(theirs_ / kHfConfigFile), read_file(back_ / kHfConfigFile));
    // The form that transformers 5 writes.
    auto config = nlohmann::json::parse(read_file(theirs_ / kHfConfigFile));
    nlohmann::json rope = config["rope_scaling"];
    rope["rope_theta"] = config["rope_theta"];
    config.erase("rope_theta");
    config.erase("rope_scaling");
    config["rope_parameters"] = rope;
    write_file(theirs_ / kHfConfigFile, config.dump());
    EXPECT_EQ(hf_config_text(read_hf_config(theirs_ / kHfConfigFile)),
              read_file(back_ / kHfConfigFile));
  }
}

TEST_F(HfFolder, PrintsTheFlagsOfTheModel) {
  EXPECT_EQ(flags_of_gpt(tiny("llama").gpt),
            "--num-layers 2 --hidden-size 12 --num-attention-heads 6 --ffn-hidden-size 10 "
            "--seq-length 8 --max-position-embeddings 8 --untie-embeddings-and-output-weights "
            "--layernorm-epsilon 1e-06 --attention-dropout 0 --hidden-dropout 0 "
            "--num-key-value-heads 2 --disable-bias-linear --swiglu "
            "--normalization rmsnorm --use-rotary-position-embeddings "
            "--rotary-position-embeddings-theta 500000");
}

TEST_F(HfFolder, ExportsWeightsWithAConfigAlone) {
  write(tiny("gpt2"));
  import_hf(theirs_, save_, {});
  const Checkpoint imported = open_checkpoint(save_, 1);
  std::vector<Value::Entry> entries;
  for (const std::string& name : imported.names())
    entries.emplace_back(name, imported.parameter(name).weight());
  const fs::path weights = folder_ / "pytorch_model.bin";
  write_torch_file(weights, Value::dict(entries));
  EXPECT_REFUSES(export_gpt({.checkpoint = weights, .output = back_}),
                 "has no args, which define the model");
  export_gpt({.checkpoint = weights, .output = back_}, theirs_ / kHfConfigFile);
  expect_same(theirs_, back_);
}

TEST_F(HfFolder, CarriesTheTokenizer) {
  write(tiny("gpt2"));
  write_file(theirs_ / "tokenizer.json", "{\"a\": 1}");
  write_file(theirs_ / "merges.txt", std::string(100'000, 'm'));  // larger than a config may be
  write_file(theirs_ / "README.md", "of the model alone");
  import_hf(theirs_, save_, {});
  for (int twice = 0; twice < 2; ++twice) {
    const HfExport out = export_gpt({.checkpoint = save_, .output = back_});
    EXPECT_THAT(out.tokenizer, ElementsAre("tokenizer.json", "merges.txt"));
    for (const std::string& name : out.tokenizer)
      EXPECT_EQ(read_file(back_ / name), read_file(theirs_ / name));
  }
  EXPECT_FALSE(fs::exists(back_ / "README.md"));
  fs::remove(save_ / "merges.txt");  // the export would lose it
  const auto export_from = [&](const fs::path& tokenizer) {
    export_gpt({.checkpoint = save_, .output = back_, .tokenizer = tokenizer});
  };
  EXPECT_REFUSES(export_from({}), "has merges.txt, which is of no");
  export_from(theirs_);
  EXPECT_REFUSES(export_from(folder_), "has no tokenizer.json");
}

TEST_F(HfFolder, ReplacesNothingButAnExport) {
  write(tiny("gpt2"));
  import_hf(theirs_, save_, {});
  fs::create_directories(back_);
  write_file(back_ / "tokenizer.json", "{}");
  const auto refused = [&] { export_gpt({.checkpoint = save_, .output = back_}); };
  EXPECT_THAT(message_of(refused), HasSubstr("has tokenizer.json, which is of no earlier export"));
  fs::remove(back_ / "tokenizer.json");
  write_file(back_ / "chat.tmpl", "my own");
  EXPECT_THAT(message_of(refused), HasSubstr("has chat.tmpl, which is of no earlier export"));
  write_file(theirs_ / kHfConfigFile, "{}");
  EXPECT_REFUSES(export_gpt({.checkpoint = save_, .output = theirs_}),
                 "is not an unchanged export of ours, or not that alone, by ",
                 "config.json; it would be replaced");
}

// A killed run leaves its files beside the output, and the next one makes up for them.
TEST_F(HfFolder, GoesOnAfterAnInterruption) {
  write(tiny("llama"));
  const fs::path universal = save_ / "global_step0_universal", half = temporary_of(universal);
  const fs::path other = kZeroFolder / fs::path("of.another.model") / "fp32.pt";
  fs::create_directory(save_);
  prepare_build_folder(half, {.files = {other}});
  write_file(half / other, "half");
  import_hf(theirs_, save_, {});
  EXPECT_FALSE(fs::exists(half));
  EXPECT_FALSE(fs::exists(universal / kZeroFolder / "of.another.model"));
  const fs::path shard = "model-00001-of-00009.safetensors";
  prepare_build_folder(temporary_of(back_), {.files = {shard}});
  write_file(temporary_of(back_) / shard, "half");
  export_gpt({.checkpoint = save_, .output = back_});
  EXPECT_FALSE(fs::exists(temporary_of(back_)));
  EXPECT_EQ(std::distance(fs::directory_iterator(back_), {}), 3);  // with .anymesh.json
  expect_same(theirs_, back_);
}

TEST_F(HfFolder, NoFamilyHasAnyMixture) {
  GptConfig gpt = tiny("gpt2").gpt;
  gpt.swiglu = true;
  EXPECT_REFUSES(family_of(gpt), "\n  GPT-2: no --swiglu",
                 "\n  Llama: --normalization rmsnorm, --no-position",
                 "no --swiglu, --embed-layernorm, --position-embedding-type alibi");
}

// Exports checkpoints of real Megatron-DeepSpeed, under both namings, and imports them, bit for
// bit.
TEST_F(HfFolder, ExportsWhatMegatronWrote) {
  for (const auto& [name, family] :
       {std::pair("z1-bf16-tp2pp1dp1-llama", "llama"), std::pair("z1-bf16-tp2pp2dp1", "gpt2"),
        std::pair("z2-bf16-tp2dp2-nopipe", "gpt2")}) {
    const fs::path checkpoint = fixture(name) / "checkpoint";
    const HfExport out = export_gpt({.checkpoint = checkpoint, .output = back_});
    EXPECT_EQ(out.model, find_family(family)->name);
    import_hf(back_, save_, {});
    const Checkpoint before = open_checkpoint(checkpoint, 1), after = open_checkpoint(save_, 1);
    ASSERT_EQ(before.names().size(), after.names().size());
    for (const HfParameter& parameter : describe_gpt(before, {}).parameters) {
      const SavedParameter theirs =
          before.parameter(before.contains(parameter.name) ? parameter.name : parameter.other_name);
      EXPECT_EQ(floats(after.parameter(parameter.name).weight()), floats(theirs.weight()))
          << parameter.name;
    }
  }
}

}  // namespace
}  // namespace anymesh
