// A Hugging Face model says more than the weights that its config.json asks for. The rest is kept,
// named or refused.

#include "tests/tools/hf_folder.h"
#include "tools/hf/tokenizer_files.h"

namespace anymesh {
namespace {

// A head of its own unties a model, whatever its config.json says, as in transformers.
TEST_F(HfFolder, KeepsAnotherHeadOfATiedModel) {
  for (const char* family : {"gpt2", "llama", "bloom"}) {
    HfModel model = tiny(family);
    model.gpt.untie_embeddings_and_output_weights = false;
    NamedTensors tensors = numbered_tensors(model);
    tensors.emplace_back("lm_head.weight", tensors[0].second);
    write(model, tensors);
    EXPECT_THAT(import_hf(theirs_, save_, {}).notes, IsEmpty());
    EXPECT_FALSE(open_checkpoint(save_, 1).contains("5.lm_head.weight"));
    std::vector<float> head = floats(tensors[0].second);
    head.back() += 1;
    tensors.back().second = float_tensor(tensors[0].second.shape, head);
    write(model, tensors);
    EXPECT_THAT(import_hf(theirs_, save_, {}).notes,
                ElementsAre(HasSubstr("lm_head.weight is another table: imported as untied")));
    export_gpt({.checkpoint = save_, .output = back_});
    expect_same(theirs_, back_);
    EXPECT_THAT(read_file(back_ / kHfConfigFile), HasSubstr("\"tie_word_embeddings\": false"));
    tensors.back().second = float_tensor({1}, {1});
    write(model, tensors);
    EXPECT_REFUSES(import_hf(theirs_, save_, {}), "lm_head.weight is [1], expected [7, 12]");
  }
}

TEST_F(HfFolder, DropsNoTensorButBuffersOfItsFamily) {
  for (const auto& [family, name, shape] :
       {std::tuple("gpt2", "transformer.h.0.attn.bias", Shape{36}),
        {"gpt2", "transformer.h.0.rotary_emb.inv_freq", Shape{1}},
        {"llama", "model.layers.0.attn.bias", Shape{1, 1, 8, 8}},
        {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq", Shape{3}}}) {
    NamedTensors tensors = numbered_tensors(tiny(family));
    const std::vector<float> values(static_cast<size_t>(numel(shape)));
    tensors.emplace_back(name, float_tensor(shape, values));
    write(tiny(family), tensors);
    EXPECT_THAT(refusal(), HasSubstr(std::string("has ") + name));
  }
}

TEST_F(HfFolder, NamesTheKeysOfAConfigThatHadNoEffect) {
  write(tiny("llama"));
  change_config("final_logit_softcapping", 30.0);
  change_config("torch_dtype", "float32");
  change_config("layer_types", nullptr);
  EXPECT_THAT(import_hf(theirs_, save_, {}).notes,
              ElementsAre(AllOf(HasSubstr("had no effect: final_logit_softcapping"),
                                Not(HasSubstr("dtype")), Not(HasSubstr("layer_types")))));
}

// Keys inside the objects of rotary positions are looked through as those beside them.
TEST_F(HfFolder, NamesTheKeysOfPositionsThatHadNoEffect) {
  write(tiny("llama"));
  change_config("rope_parameters", {{"rope_theta", 5.5}, {"factor", 2.0}, {"mrope_section", {1}}});
  HfImport report = import_hf(theirs_, save_, {});
  EXPECT_EQ(report.model.gpt.rope_theta, 5.5);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("had no effect: rope_parameters.factor, "
                                                  "rope_parameters.mrope_section")));
  write(tiny("gpt_neox"));
  change_config("rope_theta", 7);
  change_config("partial_rotary_factor", 0.25);
  report = import_hf(theirs_, save_, {});
  EXPECT_EQ(report.model.gpt.rope_theta, 500000);
  EXPECT_EQ(report.model.gpt.rotary_percent, 1);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("no effect: partial_rotary_factor, rope_theta")));
}

// hugging_face/class_defaults.json has them from transformers (tests/interop/hf_convert.py).
TEST(HfDefaults, OfAbsentKeysAreThoseOfTransformersClasses) {
  const Json classes =
      Json::parse(read_file(fs::path(ANYMESH_TEST_DATA) / "hugging_face/class_defaults.json"));
  ASSERT_EQ(classes.size(), families().size());
  const auto read = [](Json json, const char* model_type) {
    json["model_type"] = model_type;
    json["new_decoder_architecture"] = true;  // ours is Falcon's new one
    return hf_config_text(read_hf_config(Keys("config.json", json)));
  };
  for (const Family* family : families())
    EXPECT_EQ(read(Json::object(), family->model_type),
              read(classes[family->model_type], family->model_type));
}

TEST(HfDefaults, OfQwensWindows) {
  Json json = {{"model_type", "qwen2"}, {"use_sliding_window", true}};
  const auto window = [&] { return read_hf_config(Keys("config.json", json)).gpt.window(); };
  EXPECT_THAT(message_of(window), HasSubstr("'max_window_layers' is 28; expected windows in all"));
  json["num_hidden_layers"] = 28;
  EXPECT_EQ(window(), 0);
  json["max_window_layers"] = 0;
  EXPECT_EQ(window(), 4096);
  json["use_sliding_window"] = false;
  EXPECT_EQ(window(), 0);
  json["layer_types"] = std::vector<std::string>(28, "sliding_attention");
  EXPECT_THAT(message_of(window), HasSubstr("'use_sliding_window' is false; expected true"));
}

// transformers has several names of an activation.
TEST(HfActivations, HaveAllTheirNames) {
  using Activation = GptConfig::Activation;
  for (const auto& [family, key, name, expected] :
       {std::tuple("llama", "hidden_act", "swish", Activation::kSwiglu),
        {"gemma", "hidden_act", "gelu_fast", Activation::kGeglu},
        {"gpt2", "activation_function", "gelu_accurate", Activation::kGeluTanh},
        {"gpt2", "activation_function", "gelu_python_tanh", Activation::kGeluTanh},
        {"gpt2", "activation_function", "gelu_python", Activation::kGeluErf}}) {
    const HfModel model =
        read_hf_config(Keys("config.json", {{"model_type", family}, {key, name}}));
    EXPECT_EQ(model.gpt.activation(), expected) << name;
    EXPECT_THAT(model.notes, IsEmpty()) << name;
  }
  const Json first = {{"model_type", "gemma"}, {"hidden_act", "gelu"}};
  const HfModel model = read_hf_config(Keys("config.json", first));
  EXPECT_EQ(model.gpt.activation(), Activation::kGeglu);
  EXPECT_THAT(model.notes, ElementsAre(HasSubstr("means gelu_pytorch_tanh in a Gemma")));
}

TEST_F(HfFolder, MistralsLayersAgreeOnTheirWindow) {
  const auto window = [&](const char* type, const char* model_type) {
    write(tiny("mistral"));
    change_config("model_type", model_type);
    change_config("layer_types", {type, type});
    const HfImport report = import_hf(theirs_, save_, {});
    EXPECT_THAT(report.notes, IsEmpty());
    return report.model.gpt.window();
  };
  for (const char* model_type : {"mistral", "ministral"}) {
    EXPECT_EQ(window("full_attention", model_type), 0);
    EXPECT_EQ(window("sliding_attention", model_type), 5);
  }
  change_config("sliding_window", nullptr);
  EXPECT_REFUSES(import_hf(theirs_, save_, {}),
                 "'sliding_window' is missing; expected a number, as layer_types has");
}

TEST_F(HfFolder, MistralsWindowsCountWhereTextsAreLonger) {
  const auto window = [&](const nlohmann::json& size, int positions) {
    write(tiny("mistral"));
    change_config("max_position_embeddings", positions);
    change_config("sliding_window", size);
    return import_hf(theirs_, save_, {}).model.gpt.window();
  };
  EXPECT_EQ(window(nullptr, 8), 0);
  EXPECT_EQ(window(8, 8), 8);  // texts may be longer one day
  EXPECT_EQ(window(7, 8), 7);
  write(tiny("mistral"));
  auto config = nlohmann::json::parse(read_file(theirs_ / kHfConfigFile));
  config["max_position_embeddings"] = 5000;
  config.erase("sliding_window");
  write_file(theirs_ / kHfConfigFile, config.dump());
  EXPECT_EQ(import_hf(theirs_, save_, {}).model.gpt.window(), 4096);  // the class's default
}

// A family that was imported comes back by its name where it can, also through a run's args.
TEST_F(HfFolder, ModelsOfTwoFamiliesKeepTheirs) {
  GptConfig gpt = tiny("llama").gpt;
  EXPECT_STREQ(family_of(gpt).model_type, "llama");
  EXPECT_STREQ(family_of(gpt, "phi3").model_type, "phi3");
  EXPECT_STREQ(family_of(gpt, "gpt2").model_type, "llama");
  gpt.window_size = "3,0";
  EXPECT_STREQ(family_of(gpt).model_type, "mistral");
  gpt.add_qkv_bias = true;
  EXPECT_STREQ(family_of(gpt).model_type, "qwen2");
}

// Special tokens in an export's config.json.
class HfTokens : public HfFolder {
 protected:
  std::string exported(const fs::path& tokenizer = {}) {
    export_gpt({.checkpoint = save_, .output = back_, .tokenizer = tokenizer});
    const auto config = nlohmann::json::parse(read_file(back_ / kHfConfigFile));
    std::string text;
    for (const char* key : kTokenIds)
      text += config.contains(key) ? config[key].dump() + " " : "- ";
    return text;
  }
};

TEST_F(HfTokens, AreThoseOfTheModelThatWasImported) {
  write(tiny("llama"));
  change_config("bos_token_id", 1);
  change_config("eos_token_id", nlohmann::json::array({2, 5}));
  change_config("pad_token_id", nullptr);
  write_file(theirs_ / "generation_config.json", R"({"eos_token_id": 2, "pad_token_id": 0})");
  import_hf(theirs_, save_, {});
  EXPECT_EQ(exported(), "1 [2,5] null ");
  EXPECT_EQ(read_file(back_ / "generation_config.json"),
            read_file(theirs_ / "generation_config.json"));
  change_config("eos_token_id", "2");
  EXPECT_REFUSES(import_hf(theirs_, save_, {}),
                 "'eos_token_id' is \"2\"; expected an integer, a list of them or null");
}

TEST_F(HfTokens, ComeFromTheTokenizersFiles) {
  write(tiny("gpt2"));
  import_hf(theirs_, save_, {});
  EXPECT_EQ(exported(), "- - - ");
  const fs::path files = folder_ / "files";
  const auto with = [&](const std::vector<std::pair<std::string, std::string>>& texts) {
    fs::remove_all(back_);
    fs::remove_all(files);
    fs::create_directories(files);
    for (const auto& [name, text] : texts) write_file(files / name, text);
    return exported(files);
  };
  EXPECT_EQ(with({{"vocab.json", R"({"a": 0, "<|endoftext|>": 6})"}}), "6 6 - ");
  const std::string named = R"({"eos_token": {"content": "</s>"}, "pad_token": "<p>"})";
  const std::string added = R"({"added_tokens": [{"id": 3, "content": "</s>"}], "model": {"vocab":
                                {"<p>": 4}}})";
  EXPECT_EQ(with({{"tokenizer_config.json", named}, {"tokenizer.json", added}}), "- 3 4 ");
  EXPECT_EQ(with({{"special_tokens_map.json", named}, {"tokenizer.json", added}}), "- 3 4 ");
  EXPECT_EQ(with({{"generation_config.json", R"({"eos_token_id": [5, 6], "bos_token_id": 1})"},
                  {"special_tokens_map.json", named},
                  {"tokenizer.json", added}}),
            "1 [5,6] 4 ");
  const std::string decoder = R"({"eos_token": "</s>", "added_tokens_decoder": {"2": {"content":
                                  "</s>"}, "x": {}}})";
  EXPECT_EQ(with({{"tokenizer_config.json", decoder}}), "- 2 - ");
  EXPECT_EQ(with({{"tokenizer.json", "{damaged"}}), "- - - ");
  const fs::path model = fs::path(ANYMESH_TEST_DATA) / "data/sentencepiece.model";
  EXPECT_EQ(with({{"tokenizer.model", read_file(model)}}), "1 2 - ");
}

// A token that no tokenizer.json has gets the next id, in the order of the settings that name it.
TEST_F(HfTokens, AreCountedWhereTheSettingsAloneHaveThem) {
  write(tiny("gpt2"));
  import_hf(theirs_, save_, {});
  const std::string added = R"("added_tokens_decoder": {"9": {"content": "<a>"}})",
                    names = R"("eos_token": "<e>", "pad_token": "<x>")";
  const std::tuple<std::string, const char*, std::string> cases[] = {
      {"{" + names + "}", "{}", "- 3 4 "},
      {"{" + added + ", " + names + "}", R"({"eos_token": "<s>"})", "- 4 5 "},
      {"{" + names + "}", R"({"eos_token": "<s>"})", "- 3 4 "},
      {R"({"additional_special_tokens": ["<e>"], "pad_token": "<p>"})", "{}", "- - 3 "},
      {R"({"extra_special_tokens": {"video": "<v>"}, "bos_token": "<b>", "eos_token": "<v>"})",
       "{}", "3 4 - "},
      // Beside an added_tokens_decoder, special_tokens_map.json adds none.
      {R"({"added_tokens_decoder": {}, "eos_token": "<e>", "extra_special_tokens": ["<b>"]})",
       R"({"bos_token": "<b>", "pad_token": "<p>"})", "4 3 - "}};
  const fs::path files = folder_ / "files";
  fs::create_directories(files);
  write_file(files / "tokenizer.json", R"({"added_tokens": [{"id": 2, "content": "</s>"}],
      "model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  for (const auto& [config, special, expected] : cases) {
    fs::remove_all(back_);
    write_file(files / "tokenizer_config.json", config);
    write_file(files / "special_tokens_map.json", special);
    EXPECT_EQ(exported(files), expected) << config;
  }
  fs::remove_all(back_);
  write_file(files / "tokenizer_config.json", R"({"eos_token": "</s>", "pad_token": "<p>"})");
  write_file(files / "added_tokens.json", R"({"<p>": 4, "<q>": 3})");
  write_file(files / "special_tokens_map.json", "{}");
  EXPECT_EQ(exported(files), "- 2 4 ");
}

TEST_F(HfTokens, ComeFromTheRunsTokenizer) {
  fs::create_directories(folder_ / "package");
  write_file(folder_ / "package/tokenizer.json",
             R"({"added_tokens": [{"id": 3, "content": "</s>"}]})");
  write_file(folder_ / "package/tokenizer_config.json", R"({"eos_token": "</s>"})");
  const auto end_of = [](const std::string& type, const std::string& file) {
    return token_ids_of_run({.type = type, .tokenizer_model = file}).at("eos_token_id");
  };
  for (const char* type : {"HFTokenizer", "HuggingFaceTokenizer"})
    for (const char* name : {"package", "package/tokenizer.json"})
      EXPECT_EQ(end_of(type, folder_ / name), std::vector<int64_t>{3});
  EXPECT_EQ(end_of("TikTokenizer", "t"), std::vector<int64_t>{2});
  const std::string model = std::string(ANYMESH_TEST_DATA) + "/data/sentencepiece.model";
  EXPECT_EQ(end_of("Llama2Tokenizer", model), std::vector<int64_t>{2});
}

}  // namespace
}  // namespace anymesh
