#include "framework/format/whole/fp32_export.h"

#include <map>
#include <nlohmann/json.hpp>

#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/safetensors.h"
#include "framework/format/whole/convert.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

class SafetensorsFile : public TempFolder {
 protected:
  // Returns the refusal of a file with this header and this many bytes of data.
  std::string refused(const std::string& header, size_t bytes) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    write_file(folder_ / "x.safetensors", length + header + std::string(bytes, 'x'));
    return message_of([&] { read_safetensors(folder_ / "x.safetensors"); });
  }
};

TEST_F(SafetensorsFile, RoundTrips) {
  const NamedTensors written{{"b", float_tensor({2, 3}, {1, 2, 3, 4, 5, 6})},
                             {"a", float_tensor({}, {7})},
                             {"none", float_tensor({0, 4}, {})}};
  write_safetensors(folder_ / "x.safetensors", written);
  const NamedTensors read = read_safetensors(folder_ / "x.safetensors");
  ASSERT_EQ(read.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read[i].first, written[i].first);
    EXPECT_EQ(read[i].second.shape, written[i].second.shape);
    EXPECT_EQ(floats(read[i].second), floats(written[i].second));
  }
}

TEST_F(SafetensorsFile, RefusesWhatDoesNotFit) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"w":{"dtype":")") + dtype + R"(","shape":)" + shape +
           R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(refused(one("F32", "[2]", "[0,8]"), 8), "");
  EXPECT_THAT(refused(one("F32", "[2]", "[0,8]"), 4), HasSubstr("w at [0, 8)"));
  EXPECT_THAT(refused(one("F32", "[2]", "[0,8]"), 12), HasSubstr("8 bytes of tensors"));
  EXPECT_THAT(refused(one("F32", "[3]", "[0,8]"), 8), HasSubstr("expected 12"));
  EXPECT_THAT(refused(one("F32", "[2]", "[4,12]"), 12), HasSubstr("data offset 4"));
  EXPECT_THAT(refused(one("F32", "[2]", "[8,0]"), 8), HasSubstr("w at [8, 0)"));
  EXPECT_THAT(refused(one("F8", "[2]", "[0,8]"), 8), HasSubstr("dtype \"F8\""));
  EXPECT_THAT(refused(one("F32", "[-2]", "[0,8]"), 8), HasSubstr("shape [-2]"));
  EXPECT_THAT(refused(one("F32", "[4611686018427387904,4]", "[0,8]"), 8), HasSubstr("of shape"));
  EXPECT_THAT(refused(one("U8", "[0,4611686018427387904,4]", "[0,0]"), 0), HasSubstr("of shape"));
  EXPECT_THAT(refused(R"({"w":3})", 0), HasSubstr("w without data_offsets"));
  EXPECT_THAT(refused("[1]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(refused(std::string(9000, '['), 0), HasSubstr("nests deeper than 128 levels"));
  write_file(folder_ / "x.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
  EXPECT_REFUSES(read_safetensors(folder_ / "x.safetensors"), "at offset 0");
}

std::map<std::string, std::vector<float>> weights(const fs::path& folder) {
  std::map<std::string, std::vector<float>> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".bin") {
      for (const auto& [name, value] : read_torch_file(entry.path()).entries())
        out[name.as_string()] = floats(value.as_tensor());
    } else if (entry.path().extension() == ".safetensors") {
      for (const auto& [name, tensor] : read_safetensors(entry.path())) out[name] = floats(tensor);
    }
  }
  return out;
}

class Export : public TempFolder {};

// A run in half precision holds its masters as torch rounded them. The export rounds them alike, in
// both formats and however many files there are.
TEST_F(Export, RoundsMastersAsTorchDoes) {
  for (const auto& [name, dtype] :
       {std::pair{"z2-fp16-dp2", DType::kFloat16}, {"z1-bf16-dp2", DType::kBFloat16}}) {
    const Value module = read_torch_file(tag_of(name) / model_states_file(0)).at(keys::kModule);
    for (const bool safetensors : {false, true}) {
      const fs::path output = folder_ / name / (safetensors ? "safe" : "bin");
      const Fp32Report report = export_fp32({.checkpoint = tag_of(name),
                                             .output = output,
                                             .max_shard_size = 10'000,
                                             .safetensors = safetensors,
                                             .dtype = dtype},
                                            {});
      EXPECT_GT(report.files.size(), 1u);
      const Checkpoint exported = open_checkpoint(output, 1);
      size_t rounded = 0;
      for (const auto& [key, value] : module.entries()) {
        const TensorRecord weight = exported.parameter(key.as_string()).weight(),
                           &expected = value.as_tensor();
        rounded += weight.dtype == DType::kFloat32;  // Checkpoint widens
        EXPECT_EQ(floats(as_float32(weight)), floats(as_float32(expected)))
            << name << " " << key.as_string();
      }
      EXPECT_GT(rounded, 20u);
      for (const WeightsFile& file : report.files)
        for (const auto& [key, tensor] : file.tensors)
          EXPECT_EQ(tensor.dtype, is_floating(tensor.dtype) ? dtype : tensor.dtype) << key;
    }
  }
}

TEST_F(Export, ADtypeIsOfEveryFloatingTensorAndOfNoOther) {
  const TensorRecord tied = float_tensor({2}, {1.00390625f, 3}),
                     exact{DType::kFloat64, {1}, false, bytes_of<double>({1 + 0x1p-40})},
                     count{DType::kInt64, {1}, false, bytes_of<int64_t>({1 << 30})};
  write_torch_file(folder_ / "w.bin",
                   Value::dict({{"a", tied}, {"b", tied}, {"exact", exact}, {"count", count}}));
  const auto exported = [&](std::optional<DType> dtype) {
    export_fp32({.checkpoint = folder_ / "w.bin", .output = folder_ / "w", .dtype = dtype}, {});
    return read_torch_file(folder_ / "w" / kWeightsFile);
  };
  EXPECT_EQ(exported({}).at("exact").as_tensor().dtype, DType::kFloat64);
  EXPECT_EQ(exported(DType::kFloat32).at("exact").as_tensor().dtype, DType::kFloat32);
  const Value half = exported(DType::kBFloat16);
  EXPECT_EQ(half.at("a").as_tensor().bytes, half.at("b").as_tensor().bytes);
  EXPECT_EQ(read_bytes(half.at("a").as_tensor()),
            read_bytes(*bytes_of<uint16_t>({0x3F80, 0x4040})));
  EXPECT_EQ(half.at("count").as_tensor().dtype, DType::kInt64);
}

TEST_F(Export, DtypesHaveDeepSpeedsNames) {
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16", "BF16"})
    EXPECT_EQ(parse_output_dtype(name), DType::kBFloat16) << name;
  EXPECT_EQ(parse_output_dtype("fp16"), DType::kFloat16);
  EXPECT_EQ(parse_output_dtype("float32"), DType::kFloat32);
  EXPECT_REFUSES(parse_output_dtype("float64"),
                 "the dtype float64 is not supported; expected fp32");
}

// Frozen parameters, which ZeRO 3 cuts over the model-states files, and buffers are weights too. A
// universal folder has them only in its copies of those files.
TEST_F(Export, TakesWhatWasNotTrained) {
  const fs::path checkpoint = fixture("z3-fp32-dp3-frozen");
  const auto theirs = weights(checkpoint / "fp32");
  export_fp32({.checkpoint = checkpoint / "checkpoint", .output = folder_ / "a"}, {});
  export_fp32({.checkpoint = checkpoint / "universal", .output = folder_ / "b"}, {});
  EXPECT_EQ(weights(folder_ / "a"), theirs);
  EXPECT_EQ(weights(folder_ / "b"), theirs);
  export_fp32(
      {.checkpoint = checkpoint / "checkpoint", .output = folder_ / "c", .exclude_frozen = true},
      {});
  EXPECT_EQ(weights(folder_ / "c").count("h.0.attn.weight"), 0u);
  EXPECT_EQ(weights(folder_ / "c").at("scale"), theirs.at("scale"));
}

// The archive has the output of the real zero_to_fp32.py.
TEST_F(Export, EqualsDeepSpeedsInOneFileAndInMany) {
  const fs::path checkpoint = fixture("z2-bf16-dp3");
  const auto theirs = weights(checkpoint / "fp32");
  ASSERT_EQ(theirs.size(), 30u);
  EXPECT_EQ(export_fp32({.checkpoint = checkpoint / "checkpoint", .output = folder_ / "w"}, {})
                .files.size(),
            1u);
  EXPECT_EQ(weights(folder_ / "w"), theirs);
  const auto export_safe = [&](const fs::path& output) {
    return export_fp32(
        {.checkpoint = checkpoint / "checkpoint", .output = output, .safetensors = true}, {});
  };
  EXPECT_REFUSES(export_safe(folder_ / "w"),
                 "pytorch_model.bin is there, weights in torch's format");
  EXPECT_EQ(weights(folder_ / "w"), theirs);
  export_safe(folder_ / "s");
  const Fp32Report many = export_fp32({.checkpoint = checkpoint / "checkpoint",
                                       .output = folder_ / "s",
                                       .max_shard_size = 20'000,
                                       .safetensors = true},
                                      {});
  EXPECT_GT(many.files.size(), 2u);
  EXPECT_FALSE(fs::exists(folder_ / "s" / "model.safetensors")) << "an earlier export was left";
  EXPECT_EQ(weights(folder_ / "s"), theirs);
  const auto index =
      nlohmann::json::parse(read_file(folder_ / "s" / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("weight_map").size(), theirs.size());
  for (const auto& [name, file] : index.at("weight_map").items())
    EXPECT_TRUE(fs::exists(folder_ / "s" / file.get<std::string>())) << name;
}

// Under ZeRO 2 frozen parameters are whole. Metadata under ZeRO 3's names, on tp ranks too, changes
// nothing there.
TEST_F(Export, TakesFrozenParametersOfZero2FromAUniversalFolder) {
  const fs::path universal = folder_ / "global_step4_universal";
  convert_to_universal({.input = tag_of("z2-bf16-dp2-frozen"), .output = universal}, {});
  fs::copy_file(universal / zero3_model_states_file(0, 0),
                universal / zero3_model_states_file(0, 1));
  export_fp32({.checkpoint = tag_of("z2-bf16-dp2-frozen"), .output = folder_ / "a"}, {});
  export_fp32({.checkpoint = universal, .output = folder_ / "b"}, {});
  EXPECT_EQ(weights(folder_ / "a").size(), 30u);
  EXPECT_EQ(weights(folder_ / "a"), weights(folder_ / "b"));
}

TEST_F(Export, RefusesWhatLostAParameter) {
  const fs::path universal = folder_ / "global_step4_universal";
  convert_to_universal({.input = tag_of("z1-bf16-dp2"), .output = universal}, {});
  const auto refused = [&] {
    return message_of([&] { export_fp32({.checkpoint = universal, .output = folder_ / "w"}, {}); });
  };
  EXPECT_EQ(refused(), "");
  fs::remove_all(universal / kZeroFolder / "ln_f.weight");
  EXPECT_THAT(refused(), HasSubstr("ln_f.weight/fp32.pt: is missing (written on "));
  fs::remove(universal / kManifestFile);
  EXPECT_THAT(refused(), HasSubstr("has no ln_f.weight, which its model-states files list"));
}

TEST_F(Export, WeightsDoNotSayWhatWasFrozen) {
  write_torch_file(folder_ / "w.bin", Value::dict({{"a", float_tensor({1}, {1})}}));
  EXPECT_REFUSES(
      export_fp32(
          {.checkpoint = folder_ / "w.bin", .output = folder_ / "w", .exclude_frozen = true}, {}),
      "--exclude_frozen_parameters needs a checkpoint");
}

// Tied weights have one storage in .bin, and a copy for each name in safetensors. A universal
// folder has the second name in its own files.
TEST_F(Export, KeepsTiedWeightsTied) {
  const fs::path checkpoint = fixture("z1-bf16-dp2");
  for (const char* source : {"checkpoint", "universal"}) {
    const Fp32Report one = export_fp32({.checkpoint = checkpoint / source, .output = folder_}, {});
    const Value bin = read_torch_file(folder_ / "pytorch_model.bin");
    const TensorRecord head = bin.at("head.weight").as_tensor();
    EXPECT_EQ(head.bytes, bin.at("wte.weight").as_tensor().bytes) << source;
    const Fp32Report both = export_fp32(
        {.checkpoint = checkpoint / source, .output = folder_ / "safe", .safetensors = true}, {});
    EXPECT_EQ(both.weights, one.weights + head.nbytes());
    EXPECT_EQ(both.tensors, one.tensors);
    const auto copies = weights(folder_ / "safe");
    EXPECT_EQ(copies.at("head.weight"), floats(head));
    EXPECT_EQ(copies.at("wte.weight"), floats(head));
  }
}

TEST_F(Export, FillsFilesInOrder) {
  const fs::path source = folder_ / "weights.bin";
  const TensorRecord tied = float_tensor({3}, {1, 2, 3});
  write_torch_file(source, Value::dict({{"a", tied},
                                        {"b", float_tensor({2}, {4, 5})},
                                        {"c", float_tensor({9}, std::vector<float>(9))},
                                        {"d", tied},
                                        {"e", float_tensor({1}, {6})},
                                        {"f", float_tensor({5}, std::vector<float>(5))}}));
  const auto files = [&](uint64_t max_size, bool safetensors) {
    std::vector<std::string> names;
    for (const WeightsFile& file : export_fp32({.checkpoint = source,
                                   .output = folder_ / (safetensors ? "s" : "w"),
                                   .max_shard_size = max_size,
                                   .safetensors = safetensors},
                                               {})
                                       .files) {
      names.emplace_back();
      for (const auto& [name, tensor] : file.tensors) names.back() += name;
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(files(24, false), (Names{"abde", "c", "f"}));
  EXPECT_EQ(files(24, true), (Names{"ab", "c", "de", "f"}));
  EXPECT_EQ(files(1000, false), (Names{"abcdef"}));
  EXPECT_EQ(files(1, false), (Names{"ad", "b", "c", "e", "f"}));
  const auto index =
      nlohmann::json::parse(read_file(folder_ / "w" / "pytorch_model.bin.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 20 * sizeof(float)) << "tied weights count once";
  EXPECT_EQ(index.at("weight_map").at("e"), "pytorch_model-00004-of-00005.bin");
  for (const fs::path& input : {source, folder_ / "w"}) {
    const fs::path beside = fs::is_directory(input) ? input : folder_;
    EXPECT_REFUSES(export_fp32({.checkpoint = input, .output = beside}, {}),
                   "holds the weights to be exported");
  }
}

// Integers stay as they are, as in DeepSpeed's script: fp32 cannot hold a count beyond 2^24.
TEST_F(Export, KeepsBuffersOfIntegers) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_);
  const TensorRecord count{
      DType::kInt64, {1}, false, bytes_of(std::vector<int64_t>{(1 << 24) + 1})};
  change(tag / model_states_file(0), [&](Value& v) {
    v.set(keys::kModule, v.at(keys::kModule).set("count", count));
    v.set(keys::kBufferNames, v.at(keys::kBufferNames).push_back("count"));
  });
  EXPECT_REFUSES(export_fp32({.checkpoint = tag, .output = tag}, {}),
                 "holds the weights to be exported");
  export_fp32({.checkpoint = tag, .output = folder_ / "w"}, {});
  const Value exported = read_torch_file(folder_ / "w" / "pytorch_model.bin");
  EXPECT_EQ(exported.at("count"), Value(count));
  EXPECT_EQ(exported.at("scale").as_tensor().dtype, DType::kFloat32);
}

// A 3-D run and the universal folder made from it give the same state dict. DeepSpeed refuses both.
TEST_F(Export, MergesTensorAndPipelineParallelism) {
  const fs::path tag = tag_of("z1-bf16-tp2pp2dp1");
  export_fp32({.checkpoint = tag.parent_path(), .tag = tag.filename(), .output = folder_ / "a"},
              {});
  export_fp32({.checkpoint = fixture("z1-bf16-tp2pp2dp1") / "universal", .output = folder_ / "b"},
              {});
  const auto a = weights(folder_ / "a");
  EXPECT_EQ(a.size(), 52u);
  EXPECT_EQ(a.at("3.self_attention.dense.weight").size(), 64u * 64);
  EXPECT_EQ(a, weights(folder_ / "b"));
}

TEST_F(Export, ATagIsBelowItsFolder) {
  fs::create_directories(folder_ / "c/epoch=1.ckpt");
  const fs::path tag = "epoch=1.ckpt/checkpoint", own = copy_of("z1-bf16-dp2", folder_);
  fs::rename(own, folder_ / "c" / tag);
  export_fp32({.checkpoint = folder_ / "c", .tag = tag, .output = folder_ / "w"}, {});
  EXPECT_TRUE(fs::exists(folder_ / "w" / kWeightsFile));
  for (const std::string& elsewhere : {"../c/" + tag.string(), (folder_ / "c" / tag).string()})
    EXPECT_THAT(message_of([&] {
                  export_fp32(
                      {.checkpoint = folder_ / "c", .tag = elsewhere, .output = folder_ / "x"}, {});
                }),
                StartsWith("--tag names '" + elsewhere + "', which is not a folder"));
}

TEST(ParseSize, AsHuggingFace) {
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size("300mb"), 300'000'000u);
  EXPECT_EQ(parse_size("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(parse_size("1.5 GB"), 1'500'000'000u);
  EXPECT_EQ(parse_size("123"), 123u);
  for (const char* bad : {"", "GB", "-1GB", "1e3GB", "0MB", "99999999999GB", "1XB", "5GB 1", "inf"})
    EXPECT_THROW(parse_size(bad), UserError) << bad;
}

}  // namespace
}  // namespace anymesh
