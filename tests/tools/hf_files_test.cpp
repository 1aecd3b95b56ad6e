// The files of a Hugging Face folder: weights in torch's format, weights of another dtype, and
// generation_config.json.

#include <nlohmann/json.hpp>

#include "tests/tools/hf_folder.h"

namespace anymesh {
namespace {

class HfFiles : public HfFolder {
 protected:
  const std::string bin_ = "pytorch_model.bin";

  static void write_bin(const fs::path& file, const NamedTensors& tensors) {
    std::vector<Value::Entry> entries;
    for (const auto& [name, tensor] : tensors) entries.emplace_back(name, tensor);
    write_torch_file(file, Value::ordered_dict(entries));
  }
  // Writes the config.json and the tensors, each half of them in a file, with the index.
  void write_parts(const HfModel& model, const NamedTensors& tensors) {
    write(model, {});
    fs::remove(theirs_ / "model.safetensors");
    const auto half = tensors.begin() + std::ssize(tensors) / 2;
    const std::pair<std::string, NamedTensors> parts[] = {
        {"pytorch_model-00001-of-00002.bin", {tensors.begin(), half}},
        {"pytorch_model-00002-of-00002.bin", {half, tensors.end()}}};
    nlohmann::json map;
    for (const auto& [file, part] : parts) {
      write_bin(theirs_ / file, part);
      for (const auto& [name, tensor] : part) map[name] = file;
    }
    write_file(theirs_ / (bin_ + ".index.json"), nlohmann::json{{"weight_map", map}}.dump());
  }

  // The names of the first GPT-2 files, with their masks.
  static NamedTensors first_gpt2(const HfModel& model) {
    NamedTensors tensors = numbered_tensors(model);
    for (auto& [name, tensor] : tensors) name = name.substr(std::string("transformer.").size());
    for (const std::string layer : {"h.0.", "h.1."}) {
      const std::vector<uint8_t> mask(64, 1);
      tensors.emplace_back(layer + "attn.bias",
                           TensorRecord{DType::kUInt8, {1, 1, 8, 8}, false, bytes_of(mask)});
      tensors.emplace_back(layer + "attn.masked_bias", float_tensor({}, {-1e4}));
    }
    return tensors;
  }
};

TEST_F(HfFiles, OfTorchAreImportedAsSafetensorsAre) {
  for (const char* family : {"gpt2", "llama", "bloom"}) {
    const HfModel model = tiny(family);
    write(model);
    import_hf(theirs_, folder_ / "expected", {});
    write_bin(theirs_ / bin_, {});  // transformers takes safetensors where it finds both
    import_hf(theirs_, save_, {});
    expect_same(folder_ / "expected", save_);
    fs::remove(theirs_ / "model.safetensors");
    write_bin(theirs_ / bin_, numbered_tensors(model));
    import_hf(theirs_, save_, {});
    expect_same(folder_ / "expected", save_);
    fs::remove(theirs_ / bin_);
    write_parts(model, numbered_tensors(model));
    import_hf(theirs_, save_, {});
    expect_same(folder_ / "expected", save_);
    fs::remove_all(theirs_);
  }
}

TEST_F(HfFiles, OfTheFirstGpt2HaveBareNamesAndMasks) {
  const HfModel model = tiny("gpt2");
  write(model);
  import_hf(theirs_, folder_ / "expected", {});
  write_parts(model, first_gpt2(model));
  import_hf(theirs_, save_, {});
  expect_same(folder_ / "expected", save_);
  NamedTensors tensors = first_gpt2(model);
  tensors.emplace_back("h.1.attn.c_attn.bias2", float_tensor({36}, std::vector<float>(36)));
  write_parts(model, tensors);
  fs::remove_all(save_);
  EXPECT_THAT(refusal(), HasSubstr("has h.1.attn.c_attn.bias2, which no GPT-2"));
}

TEST_F(HfFiles, OfTorchThatAreDamagedOrOldAreRefused) {
  const HfModel model = tiny("gpt2");
  write_parts(model, numbered_tensors(model));
  const fs::path part = theirs_ / "pytorch_model-00002-of-00002.bin";
  const std::string whole = read_file(part);
  write_file(part, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal(), HasSubstr(part.string()));
  write_file(part, std::string("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.", 15));
  EXPECT_THAT(refusal(),
              HasSubstrs(part.string() + ": is in the legacy format of torch.save before 1.6",
                         "; convert it first: python3 -c 'import ",
                         ".new\")' " + part.string() + " && mv "));
  fs::remove(part);
  EXPECT_THAT(refusal(), HasSubstr(part.string()));
}

// transformers ties the head, whether a file has what the index lists or not.
TEST_F(HfFiles, MayLackATiedHeadThatTheIndexLists) {
  HfModel model = tiny("llama");
  model.gpt.untie_embeddings_and_output_weights = false;
  write_parts(model, numbered_tensors(model));
  import_hf(theirs_, folder_ / "expected", {});
  const fs::path index = theirs_ / (bin_ + ".index.json");
  auto map = nlohmann::json::parse(read_file(index));
  map["weight_map"]["lm_head.weight"] = "pytorch_model-00001-of-00002.bin";
  write_file(index, map.dump());
  EXPECT_THAT(import_hf(theirs_, save_, {}).notes, ElementsAre());
  expect_same(folder_ / "expected", save_);
  change_config("tie_word_embeddings", false);
  EXPECT_REFUSES(import_hf(theirs_, folder_ / "untied", {}),
                 "00001-of-00002.bin: has no lm_head.weight, which the index says it has");
}

// Names as DDP, torch.compile, Lightning, FSDP, PEFT and a module around the model leave them.
TEST_F(HfFiles, LoseWhatATrainersWrappersAdd) {
  for (const char* family : {"gpt2", "llama"}) {
    const HfModel model = tiny(family);
    fs::remove_all(theirs_);
    write(model);
    import_hf(theirs_, folder_ / "expected", {}, /*overwrite=*/true);
    for (const std::string before :
         {"module.", "_orig_mod.", "_forward_module.", "module._orig_mod.", "model.",
          "base_model.model.", "_fsdp_wrapped_module."}) {
      NamedTensors tensors = numbered_tensors(model);
      for (auto& [name, tensor] : tensors) {
        if (const size_t layer = name.find(".1."); layer != std::string::npos)
          name.insert(layer + 3, "_checkpoint_wrapped_module.");
        name = before + name;
      }
      write(model, tensors);
      EXPECT_THAT(import_hf(theirs_, save_, {}).notes,
                  ElementsAre(HasSubstrs("what a trainer's wrapper adds", before)));
      expect_same(folder_ / "expected", save_);
    }
  }
  NamedTensors twice = numbered_tensors(tiny("llama"));
  twice.emplace_back("module." + twice[1].first, twice[1].second);
  write(tiny("llama"), twice);
  EXPECT_REFUSES(import_hf(theirs_, save_, {}), "twice, once as mod");
}

TEST_F(HfFiles, MayBeInsideATrainersOwn) {
  const HfModel model = tiny("gpt2");
  write(model);
  import_hf(theirs_, folder_ / "expected", {});
  fs::remove(theirs_ / "model.safetensors");
  std::vector<Value::Entry> entries;
  for (const auto& [name, tensor] : numbered_tensors(model)) entries.emplace_back(name, tensor);
  for (const char* key : {"state_dict", "model_state_dict", "model", "module"}) {
    write_torch_file(theirs_ / bin_, Value::dict({{"epoch", 3}, {key, Value::dict(entries)}}));
    EXPECT_THAT(import_hf(theirs_, save_, {}).notes,
                ElementsAre(HasSubstr("under '" + std::string(key) + "'")));
    expect_same(folder_ / "expected", save_);
  }
}

TEST_F(HfFiles, OfAnAdapterAreRefusedWithTheCommandThatImportsIt) {
  fs::create_directories(theirs_);
  write_file(theirs_ / "adapter_config.json", R"({"peft_type": "LORA"})");
  EXPECT_THAT(refusal(), HasSubstrs("adapter_config.json: is of an adapter of PEFT",
                                    "hf_convert import BASE SAVE --adapter " + theirs_.string()));
  fs::remove(theirs_ / "adapter_config.json");
  NamedTensors tensors = numbered_tensors(tiny("llama"));
  tensors.emplace_back("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
                       float_tensor({1}, {1}));
  write(tiny("llama"), tensors);
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors: is of an adapter of PEFT"));
}

TEST_F(HfFiles, OfAnotherDtypeAreRoundedOnce) {
  const HfModel model = tiny("llama");
  NamedTensors tensors = numbered_tensors(model);
  for (auto& [name, tensor] : tensors) {
    std::vector<float> values = floats(tensor);
    for (float& value : values) value /= 3;
    tensor = float_tensor(tensor.shape, values);
  }
  write(model, tensors);
  import_hf(theirs_, save_, {});
  for (const auto& [dtype, name] :
       {std::pair(DType::kBFloat16, "bfloat16"), std::pair(DType::kFloat16, "float16")}) {
    export_gpt({.checkpoint = save_, .output = back_, .dtype = dtype});
    const auto config = nlohmann::json::parse(read_file(back_ / kHfConfigFile));
    EXPECT_EQ(config["dtype"], name);
    const fs::path expected = folder_ / name;
    export_fp32({.checkpoint = theirs_, .output = expected, .safetensors = true, .dtype = dtype},
                {});
    for (const auto& [tensor, record] : read_safetensors(back_ / "model.safetensors"))
      EXPECT_EQ(record.dtype, dtype) << tensor;
    expect_same(expected, back_);
    import_hf(back_, folder_ / "again", {});
    export_gpt({.checkpoint = folder_ / "again", .output = folder_ / "twice", .dtype = dtype});
    expect_same(back_, folder_ / "twice");
  }
  const auto describe = [](const Checkpoint&, const TokenIds&) {
    return HfDescription{.config = R"({"torch_dtype": "float32"})",
                         .parameters = {{.name = "a", .shape = {2}, .theirs = {{"b", {2}}}}}};
  };
  write_safetensors(folder_ / "model.safetensors", {{"a", float_tensor({2}, {1, 2})}});
  export_hf({.checkpoint = folder_ / "model.safetensors",
             .output = folder_ / "mine",
             .dtype = DType::kFloat16},
            describe, {});
  const auto config = nlohmann::json::parse(read_file(folder_ / "mine" / kHfConfigFile));
  EXPECT_EQ(config, (nlohmann::json{{"torch_dtype", "float16"}, {"dtype", "float16"}}));
}

TEST_F(HfFiles, SayTheSpecialTokensToGenerate) {
  HfModel model = tiny("llama");
  const fs::path generation = back_ / kHfGenerationFile;
  write(model);
  import_hf(theirs_, save_, {});
  EXPECT_THAT(export_gpt({.checkpoint = save_, .output = back_}).tokenizer, ElementsAre());
  EXPECT_FALSE(fs::exists(generation));  // nothing says them
  model.token_ids = {{"bos_token_id", {1}}, {"eos_token_id", {2, 5}}, {"pad_token_id", {}}};
  write(model);
  import_hf(theirs_, save_, {});
  for (int twice = 0; twice < 2; ++twice) {
    export_gpt({.checkpoint = save_, .output = back_});
    EXPECT_EQ(nlohmann::json::parse(read_file(generation)),
              (nlohmann::json{{"bos_token_id", 1}, {"eos_token_id", {2, 5}}}));
  }
  // The model's own goes along as it is.
  const std::string own = R"({"eos_token_id": 2, "temperature": 0.6})";
  write_file(theirs_ / kHfGenerationFile, own);
  import_hf(theirs_, save_, {});
  EXPECT_THAT(export_gpt({.checkpoint = save_, .output = back_}).tokenizer,
              ElementsAre(kHfGenerationFile));
  EXPECT_EQ(read_file(generation), own);
  write_file(generation, "mine");
  EXPECT_REFUSES(export_gpt({.checkpoint = save_, .output = back_}),
                 "is not an unchanged export of ours, or not that alone, by ",
                 "generation_config.json; it would be replaced");
}

}  // namespace
}  // namespace anymesh
