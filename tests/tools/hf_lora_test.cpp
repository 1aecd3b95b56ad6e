// Adapters of PEFT come in beside their base model, go out again, and are merged.

#include <nlohmann/json.hpp>

#include "tests/tools/hf_folder.h"
#include "tools/hf/gpt/peft.h"

namespace anymesh {
namespace {

constexpr int kRank = 3, kAlpha = 6;
constexpr const char* kLlama = "base_model.model.model.layers.0.self_attn.q_proj";

class HfLora : public HfFolder {
 protected:
  const fs::path adapter_ = folder_ / "adapter", merged_ = folder_ / "merged";
  const fs::path weights_ = adapter_ / "adapter_model.safetensors";

  // Returns A and B of each matrix whose name ends in one of `modules`, in multiples of 1/4.
  static NamedTensors factors(const HfModel& model, const std::vector<std::string>& modules) {
    NamedTensors tensors;
    int next = 0;
    const auto add = [&](const std::string& name, const Shape& shape) {
      std::vector<float> values(static_cast<size_t>(numel(shape)));
      for (float& value : values) value = static_cast<float>((next = (next + 5) % 17) - 8) / 4;
      tensors.emplace_back("base_model.model." + name, float_tensor(shape, values));
    };
    for (const HfParameter& parameter : hf_parameters(model)) {
      for (const auto& [name, shape] : parameter.theirs) {
        const std::string module = name.substr(0, name.rfind('.'));
        if (!name.ends_with(".weight") || std::ranges::none_of(modules, [&](const auto& end) {
              return module.ends_with("." + end);
            }))
          continue;
        const bool conv = model.family->transposed;
        add(module + ".lora_A.weight", {kRank, shape[conv ? 0 : 1]});
        add(module + ".lora_B.weight", {shape[conv ? 1 : 0], kRank});
      }
    }
    return tensors;
  }
  static nlohmann::json settings(const std::vector<std::string>& modules) {
    return {{"peft_type", "LORA"},
            {"task_type", "CAUSAL_LM"},
            {"r", kRank},
            {"lora_alpha", kAlpha},
            {"bias", "none"},
            {"target_modules", modules},
            {"use_dora", false},
            {"rank_pattern", nlohmann::json::object()},
            {"lora_dropout", 0.25},
            {"layers_to_transform", nullptr},
            {"use_rslora", false},
            {"init_lora_weights", true},
            {"fan_in_fan_out", true},
            {"modules_to_save", nullptr}};
  }
  void write_adapter(const NamedTensors& tensors, const nlohmann::json& config) {
    fs::create_directories(adapter_);
    write_file(adapter_ / kPeftConfigFile, config.dump());
    write_safetensors(weights_, tensors);
  }
  // Writes a base model and an adapter of these modules.
  HfModel write_both(const std::string& family, const std::vector<std::string>& modules) {
    HfModel model = tiny(family);
    write(model);
    write_adapter(factors(model, modules), settings(modules));
    return model;
  }
  HfImport import() { return import_hf(theirs_, save_, {}, /*overwrite=*/true, adapter_); }
  static HfExport export_lora(const HfExportOptions& options, const LoraExport& adapters,
                              const fs::path& config = {}) {
    const auto describe = [&](const Checkpoint& checkpoint, const TokenIds& ids) {
      return describe_gpt(checkpoint, ids, config, adapters);
    };
    return export_hf(options, describe, {});
  }
  std::string refused_adapter() {
    const std::string message = message_of([&] { import(); });
    EXPECT_FALSE(fs::exists(save_)) << message;
    return message;
  }
  // Expects the merged model to be W + alpha / r B A, where there is an adapter.
  void expect_merged(const HfModel& model) {
    std::map<std::string, TensorRecord> base, adapter;
    for (const auto& [name, tensor] : read_safetensors(theirs_ / "model.safetensors"))
      base[name] = tensor;
    for (const auto& [name, tensor] : read_safetensors(weights_)) adapter[name] = tensor;
    size_t adapted = 0;
    for (const auto& [name, tensor] : read_safetensors(merged_ / "model.safetensors")) {
      std::vector<float> expected = floats(base.at(name));
      const std::string module = "base_model.model." + name.substr(0, name.rfind('.'));
      if (adapter.contains(module + ".lora_A.weight") && name.ends_with(".weight")) {
        ++adapted;
        const auto a = floats(adapter.at(module + ".lora_A.weight")),
                   b = floats(adapter.at(module + ".lora_B.weight"));
        const size_t in = a.size() / kRank, out = b.size() / kRank;
        for (size_t row = 0; row < out; ++row)
          for (size_t column = 0; column < in; ++column)
            for (size_t k = 0; k < kRank; ++k)
              expected[model.family->transposed ? column * out + row : row * in + column] +=
                  kAlpha / kRank * b[row * kRank + k] * a[k * in + column];
      }
      EXPECT_EQ(floats(tensor), expected) << name;
    }
    EXPECT_EQ(2 * adapted, adapter.size());
  }
};

TEST_F(HfLora, GoesInAndOutAgainAndIsMerged) {
  using Modules = std::vector<std::string>;
  for (const auto& [family, modules, targets] :
       {std::tuple(
            "llama",
            Modules{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
            Modules{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        {"mixtral", {"k_proj", "o_proj"}, {"k_proj", "o_proj"}},
        {"qwen2_moe",
         {"q_proj", "mlp.gate_proj", "shared_expert.gate_proj"},
         {"q_proj", "gate_proj"}},
        {"opt", {"v_proj", "fc1", "out_proj"}, {"v_proj", "o_proj", "up_proj"}},
        {"phi3", {"o_proj", "down_proj"}, {"o_proj", "down_proj"}},
        {"gpt2", {"attn.c_proj", "c_fc"}, {"o_proj", "up_proj"}}}) {
    for (const fs::path& folder : {theirs_, save_, back_, merged_, adapter_})
      fs::remove_all(folder);
    const HfModel model = write_both(family, modules);
    const HfImport report = import();
    EXPECT_EQ(report.lora.targets, targets) << family;
    EXPECT_EQ(report.lora.rank, kRank);
    EXPECT_EQ(report.lora.dropout, 0.25);
    EXPECT_FALSE(report.resumes);
    const HfExport exported = export_lora({.checkpoint = save_, .output = back_}, {.base = "a/b"});
    EXPECT_EQ(exported.model, std::string("LoRA adapter for ") + model.family->name);
    const auto sorted = [](NamedTensors tensors) {
      std::ranges::sort(tensors, {}, [](const auto& named) { return named.first; });
      return tensors;
    };
    const NamedTensors expected = sorted(read_safetensors(weights_)),
                       found = sorted(read_safetensors(back_ / "adapter_model.safetensors"));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected[i].first);
      EXPECT_EQ(floats(found[i].second), floats(expected[i].second)) << found[i].first;
    }
    const auto config = nlohmann::json::parse(read_file(back_ / kPeftConfigFile));
    Modules ends = modules;
    std::ranges::sort(ends);
    EXPECT_EQ(config["target_modules"], nlohmann::json(ends));
    EXPECT_EQ(config["base_model_name_or_path"], "a/b");
    EXPECT_EQ(config["fan_in_fan_out"], model.family->transposed);
    for (const char* key : {"r", "lora_alpha", "lora_dropout", "peft_type", "bias", "task_type"})
      EXPECT_EQ(config[key], settings({})[key]) << key;
    EXPECT_FALSE(fs::exists(back_ / kHfConfigFile));
    export_lora({.checkpoint = save_, .output = merged_}, {.merge = true});
    EXPECT_EQ(read_file(merged_ / kHfConfigFile), read_file(theirs_ / kHfConfigFile));
    expect_merged(model);
  }
}

TEST_F(HfLora, IsTheSameUnderTrainersNamesAndInTorchsFormat) {
  const HfModel model = write_both("llama", {"q_proj", "down_proj"});
  import();
  fs::rename(save_, folder_ / "expected");
  NamedTensors tensors = read_safetensors(weights_);
  for (auto& [name, tensor] : tensors) {
    name.insert(name.rfind(".weight"), ".default");
    name.insert(0, "module.");
  }
  std::vector<Value::Entry> entries(tensors.begin(), tensors.end());
  write_torch_file(adapter_ / "adapter_model.bin", Value::ordered_dict(entries));
  fs::remove(weights_);
  import();
  expect_same(folder_ / "expected", save_);
  // Frozen weights are not needed to export the adapter.
  const Checkpoint imported = open_checkpoint(save_, 1);
  for (const std::string& name : imported.names())
    if (name.find("lora") == std::string::npos)
      fs::remove_all(save_ / "global_step0_universal" / "zero" / name);
  export_lora({.checkpoint = save_, .output = back_}, {.base = "base"});
  write_adapter(read_safetensors(back_ / "adapter_model.safetensors"),
                nlohmann::json::parse(read_file(back_ / kPeftConfigFile)));
  fs::remove(adapter_ / "adapter_model.bin");
  fs::remove_all(save_);
  import();
  expect_same(folder_ / "expected", save_);
}

TEST_F(HfLora, ScalesAsRankStabilizedOnesDo) {
  const NamedTensors tensors = factors(write_both("llama", {"q_proj"}), {"q_proj"});
  nlohmann::json config = settings({"q_proj"});
  config["use_rslora"] = true;
  config["target_modules"] = ".*q_proj";
  config["some_day"] = 1;
  write_adapter(tensors, config);
  const HfImport report = import();
  EXPECT_DOUBLE_EQ(report.lora.alpha / kRank, kAlpha / std::sqrt(kRank));
  EXPECT_THAT(report.notes,
              ElementsAre(HasSubstr("--lora-alpha 10.392"), HasSubstr("had no effect: some_day")));
}

TEST_F(HfLora, RefusesSettingsThatItCannotHold) {
  const NamedTensors tensors = factors(write_both("llama", {"q_proj"}), {"q_proj"});
  const nlohmann::json saved = {"lm_head"};
  for (const auto& [key, value, found] :
       {std::tuple("peft_type", nlohmann::json("LOHA"), "is \"LOHA\"; expected \"LORA\""),
        {"task_type", "SEQ_CLS", "is \"SEQ_CLS\"; expected null or \"CAUSAL_LM\""},
        {"r", 0, "is 0; expected an integer from 1"},
        {"r", 2000000000, "lora_A.weight is [3, 12], expected [2000000000, 12] by its adapter_c"},
        {"lora_alpha", "8", "is \"8\"; expected a number"},
        {"use_dora", true, "is true; expected null"},
        {"bias", "all", "is \"all\"; expected \"none\""},
        {"lora_bias", true, "is true; expected null"},
        {"modules_to_save", saved, "is [\"lm_head\"]; expected null"},
        {"target_parameters", saved, "is [\"lm_head\"]; expected null"},
        {"rank_pattern", {{"q_proj", 4}}, "is {\"q_proj\":4}; expected none, or r for all"},
        {"alpha_pattern", {{"q_proj", 4}}, "is {\"q_proj\":4}; expected none, or lora_alpha"},
        {"init_lora_weights", "pissa", "is \"pissa\"; expected true, false, \"gaussian\""},
        {"target_modules", 3, "is 3; expected a list"},
        {"target_modules", {"v_proj"}, "which target_modules [\"v_proj\"] leaves out"}}) {
    nlohmann::json config = settings({"q_proj"});
    config[key] = value;
    write_adapter(tensors, config);
    EXPECT_THAT(refused_adapter(), HasSubstr(found)) << key;
  }
  nlohmann::json same = settings({"q_proj"});
  same["rank_pattern"] = {{"q_proj", kRank}};
  write_adapter(tensors, same);
  import();
}

TEST_F(HfLora, RefusesTensorsThatItCannotHold) {
  const NamedTensors whole = factors(write_both("llama", {"q_proj"}), {"q_proj"});
  const auto refused = [&](const std::string& name, const TensorRecord& tensor) {
    NamedTensors tensors = whole;
    tensors.emplace_back(name, tensor);
    write_adapter(tensors, settings({"q_proj"}));
    return refused_adapter();
  };
  const TensorRecord one = float_tensor({1}, {1});
  EXPECT_THAT(refused("base_model.model.model.embed_tokens.lora_embedding_A", one),
              HasSubstr("has base_model.model.model.embed_tokens.lora_embedding_A; expected"));
  EXPECT_THAT(refused(std::string(kLlama) + ".lora_magnitude_vector", one),
              HasSubstr("lora_magnitude_vector; expected lora_A and lora_B"));
  EXPECT_THAT(refused("base_model.model.lm_head.lora_A.weight", one),
              HasSubstrs("lm_head.lora_A.weight; expected adapters of mlp.down_proj, ",
                         "self_attn.v_proj in Llama"));
  EXPECT_THAT(refused(std::string(kLlama) + ".lora_A.other.weight", one),
              HasSubstrs("q_proj.lora_A.weight twice", "expected one adapter"));
  NamedTensors tensors = {whole.begin() + 1, whole.end()};
  write_adapter(tensors, settings({"q_proj"}));
  EXPECT_THAT(refused_adapter(),
              HasSubstrs("has no model.layers.0.self_attn.q_proj.lora_A.weight, but ",
                         "expected q_proj of all layers"));
  nlohmann::json config = settings({"q_proj"});
  config["layers_to_transform"] = {0};
  write_adapter({whole.begin(), whole.begin() + 2}, config);
  EXPECT_THAT(refused_adapter(), HasSubstr("of all layers (layers_to_transform is [0])"));
  tensors = whole;
  tensors[1].second = float_tensor({4, kRank}, std::vector<float>(12));
  write_adapter(tensors, settings({"q_proj"}));
  EXPECT_THAT(refused_adapter(), HasSubstr("lora_B.weight is [4, 3], expected [12, 3]"));
  write_adapter({}, settings({}));
  EXPECT_THAT(refused_adapter(), HasSubstr("has no lora_A and lora_B of a layer"));
  fs::remove(weights_);
  EXPECT_THAT(refused_adapter(), HasSubstr("has no adapter_model.safetensors"));
  fs::remove(adapter_ / kPeftConfigFile);
  EXPECT_THAT(refused_adapter(), HasSubstr("adapter_config.json: no such file"));
}

TEST_F(HfLora, RefusesMatricesThatAreSeveralOfOurs) {
  const HfModel gpt2 = write_both("gpt2", {"c_attn"});
  EXPECT_THAT(refused_adapter(), HasSubstrs("attn.c_attn.lora_A.weight; expected adapters of ",
                                            "attn.c_proj, mlp.c_fc, mlp.c_proj in GPT-2, ",
                                            "whose q, k and v are one matrix", "Llama", "OPT"));
  const HfModel moe = write_both("qwen3_moe", {"experts.0.up_proj"});
  EXPECT_THAT(refused_adapter(), HasSubstr("mlp.experts.0.up_proj.lora_A.weight; expected"));
}

TEST_F(HfLora, IsExportedOnlyAsTheUserSays) {
  write_both("llama", {"q_proj", "o_proj"});
  import();
  const auto refused = [&](const LoraExport& adapters, const fs::path& config = {}) {
    const std::string message =
        message_of([&] { export_lora({.checkpoint = save_, .output = back_}, adapters, config); });
    EXPECT_FALSE(fs::exists(back_)) << message;
    return message;
  };
  EXPECT_THAT(refused({}), HasSubstrs("has LoRA adapters; --merge ", "--adapter BASE "));
  // Phi 3 has the same matrices here, but q, k and v in one there.
  HfModel phi = tiny("phi3");
  write_file(folder_ / "phi3.json", hf_config_text(phi));
  EXPECT_THAT(refused({.base = "b"}, folder_ / "phi3.json"),
              HasSubstrs("has 2.self_attention.q_proj.lora_A.weight, whose matrix a Phi 3 has in "
                         "one with others",
                         "--merge"));
  export_lora({.checkpoint = save_, .output = merged_}, {.merge = true}, folder_ / "phi3.json");
  const fs::path file = save_ / "global_step0_universal" / "mp_rank_00_model_states.pt";
  Value states = read_torch_file(file);
  for (const auto& [key, value, found] :
       {std::tuple("lora_rank", Value(4), "lora_A.weight is [3, 12], expected [4, 12]"),
        {"lora_rank", Value(0), "--lora-alpha 6 has no effect without --lora-rank"},
        {"lora_alpha", Value("x"), "lora_alpha"},
        {"lora_target", Value::list({"q_proj", "lm_head"}),
         "--lora-target lm_head: this model has"},
        {"lora_target", Value::list({"q_proj"}), "has 2.self_attention.o_proj.lora_A.weight"}}) {
    Value changed = states, args = states.at("args");
    changed.set("args", args.set(key, value));
    fs::remove(file);  // which has a second name
    write_torch_file(file, changed);
    EXPECT_THAT(refused({.base = "b"}), HasSubstr(found)) << key;
    EXPECT_THAT(refused({.merge = true}), HasSubstr(found)) << key;
  }
  fs::remove_all(save_);
  import_hf(theirs_, save_, {}, /*overwrite=*/true);
  EXPECT_THAT(refused({.merge = true}), HasSubstr("has no LoRA adapters; expected some"));
  EXPECT_THAT(refused({.base = "b"}), HasSubstr("has no LoRA adapters; expected some"));
}

}  // namespace
}  // namespace anymesh
