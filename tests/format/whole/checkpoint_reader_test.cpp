#include <sys/stat.h>

#include <algorithm>

#include "framework/format/checkpoint/model.h"
#include "framework/format/torch_file/safetensors.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

using Kind = Checkpoint::Kind;

class Whole : public TempFolder {};

// ckpt_diff_test.cpp compares their tensors.
TEST_F(Whole, KnowsOrdinaryFromUniversalCheckpoints) {
  for (const std::string& name : kConverted) {
    const Checkpoint ordinary = open_checkpoint(fixture(name) / "checkpoint", 2),
                     universal = open_checkpoint(fixture(name) / "universal", 2);
    EXPECT_EQ(ordinary.kind, Kind::kOrdinary);
    EXPECT_EQ(universal.kind, Kind::kUniversal);
    EXPECT_EQ(ordinary.metadata.at(keys::kDpWorldSize), universal.metadata.at(keys::kDpWorldSize));
    EXPECT_GT(ordinary.names().size(), 16u);
  }
}

TEST_F(Whole, ReadsAnyRangeOfATensorThatTpCuts) {
  const Checkpoint checkpoint = open_checkpoint(tag_of("z1-bf16-tp2pp2dp1"), 2);
  EXPECT_EQ(checkpoint.description, "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1");
  const SavedParameter row = checkpoint.parameter("3.self_attention.dense.weight");
  EXPECT_EQ(row.shape, (Shape{64, 64}));
  EXPECT_EQ(row.keys.at(keys::kCatDim).as_int(), 1);
  EXPECT_EQ(row.pp_ranks, std::vector<int>{0});
  const ByteSource& bytes = *row.state(kExpAvgState).bytes;
  const std::vector<float> all = floats(bytes);
  std::vector<float> some(100);
  bytes.read(30 * sizeof(float), std::as_writable_bytes(std::span(some)));
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 30));
  EXPECT_EQ(checkpoint.parameter("tied_modules.embed.word_embeddings.weight").pp_ranks,
            (std::vector<int>{0, 1}));
}

TEST_F(Whole, WeightsAlone) {
  const auto half = std::vector<uint16_t>{0x3F80, 0xC000};
  write_torch_file(folder_ / "one.bin", Value::dict({{"a", float_tensor({2}, {1, 2})}}));
  write_torch_file(
      folder_ / "two.bin",
      Value::dict({{"b", TensorRecord{DType::kBFloat16, {1, 2}, false, bytes_of(half)}}}));
  write_file(folder_ / "pytorch_model.bin.index.json",
             R"({"weight_map": {"a": "one.bin", "b": "two.bin"}})");
  const Checkpoint parts = open_checkpoint(folder_, 1);
  EXPECT_EQ(parts.kind, Kind::kWeights);
  EXPECT_EQ(parts.names(), (std::vector<std::string>{"a", "b"}));
  const SavedParameter b = parts.parameter("b");
  EXPECT_EQ(b.shape, (Shape{1, 2}));
  EXPECT_EQ(b.weight().dtype, DType::kFloat32);
  EXPECT_EQ(floats(b.weight()), (std::vector<float>{1, -2}));
  EXPECT_FALSE(b.state(kExpAvgState).bytes);
  EXPECT_FALSE(parts.metadata);
  EXPECT_EQ(open_checkpoint(folder_ / "one.bin", 1).names(), std::vector<std::string>{"a"});
}

TEST_F(Whole, WeightsInSafetensors) {
  write_safetensors(folder_ / "one.safetensors", {{"a", float_tensor({2}, {1, 2})}});
  write_safetensors(folder_ / "two.safetensors", {{"b", float_tensor({1}, {3})}});
  const fs::path index = folder_ / "model.safetensors.index.json";
  write_file(index, R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  for (const fs::path& path : {folder_, index}) {
    const Checkpoint parts = open_checkpoint(path, 1);
    EXPECT_EQ(parts.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(floats(parts.parameter("b").weight()), std::vector<float>{3});
  }
  write_safetensors(folder_ / "model.safetensors", {{"c", float_tensor({1}, {4})}});
  EXPECT_EQ(open_checkpoint(folder_, 1).names(), std::vector<std::string>{"c"});
}

std::string refusal(const fs::path& path) {
  return message_of([&] { open_checkpoint(path, 1); });
}

TEST_F(Whole, RefusesWeightsOutsideTheFolderAndTwice) {
  const fs::path index = folder_ / "pytorch_model.bin.index.json";
  for (const char* text : {R"({"weight_map": {"a": "../one.bin"}})", R"({"weight_map": [7]})"}) {
    write_file(index, text);
    EXPECT_THAT(refusal(folder_), HasSubstr("is no file beside it")) << text;
  }
  for (const char* text : {"", "[]", "{}", R"({"weight_map": {}})"}) {
    write_file(index, text);
    EXPECT_THAT(refusal(folder_), HasSubstr("has no weight_map")) << text;
  }
  for (const char* name : {"one.bin", "two.bin"})
    write_torch_file(folder_ / name, Value::dict({{"a", float_tensor({1}, {1})}}));
  write_file(index, R"({"weight_map": {"b": "one.bin", "c": "two.bin"}})");
  EXPECT_THAT(refusal(folder_), HasSubstr("['a']: expected no second tensor"));
  write_file(index, R"({"weight_map": {"a": "one.bin", "b": "one.bin"}})");
  EXPECT_THAT(refusal(folder_), HasSubstr("one.bin: has no b, which the index says"));
}

// Two parts have `a`, and the index picks one of them.
TEST_F(Whole, WeightsAreThoseThatTheIndexPicks) {
  for (const auto& [name, value] : {std::pair("one", 1.0F), {"two", 2.0F}})
    write_safetensors(folder_ / (name + std::string(".safetensors")),
                      {{"a", float_tensor({1}, {value})}, {name, float_tensor({1}, {0})}});
  for (const auto& [part, value] : {std::pair("one", 1.0F), {"two", 2.0F}}) {
    write_file(folder_ / "model.safetensors.index.json",
               R"({"weight_map": {"one": "one.safetensors", "two": "two.safetensors", "a": ")" +
                   std::string(part) + R"(.safetensors"}})");
    EXPECT_EQ(floats(open_checkpoint(folder_, 1).parameter("a").weight()),
              std::vector<float>{value});
  }
}

TEST_F(Whole, SaysWhatAFolderHoldsThatIsNoCheckpoint) {
  write_file(folder_ / "diary", "dear diary");
  mkfifo((folder_ / "fifo").c_str(), 0600);
  EXPECT_THAT(refusal(folder_ / "fifo"), HasSubstr("fifo: is a FIFO"));
  fs::remove(folder_ / "fifo");
  EXPECT_THAT(refusal(folder_), HasSubstr("is no checkpoint"));
  EXPECT_THAT(refusal(folder_), HasSubstr("It holds: diary"));
  EXPECT_THAT(refusal(folder_ / "absent"), HasSubstr("holds: diary"));
  fs::create_directories(folder_ / "a/b");
  for (const std::string tag : {"global_step7", "", ".", "..", "/tmp", "a/../..", "a//b", "/"}) {
    write_file(folder_ / kLatestFile, tag);
    const std::string expected =
        "/latest names '" + tag + "', which is not a folder below " + folder_.string();
    EXPECT_THAT(refusal(folder_), HasSubstr(expected)) << tag;
  }
  for (const char* tag : {"a/b\n", "a/b/"}) {
    write_file(folder_ / kLatestFile, tag);
    EXPECT_EQ(resolve_tag(folder_), folder_ / "a/b");
  }
  const Checkpoint checkpoint = open_checkpoint(tag_of("z1-bf16-dp2"), 1);
  EXPECT_REFUSES(checkpoint.parameter("no.such"), "has no parameter no.such");
}

TEST_F(Whole, AUniversalParameterThatIsDamagedIsNamed) {
  fs::copy(fixture("z1-bf16-dp2") / "universal", folder_, fs::copy_options::recursive);
  const fs::path tag = resolve_tag(folder_), states = tag / kZeroFolder / "h.0.fc.bias";
  write_torch_file(states / "exp_avg.pt", Value::dict({{keys::kParam, float_tensor({1}, {1})}}));
  EXPECT_REFUSES(open_checkpoint(tag, 1).parameter("h.0.fc.bias"),
                 "expected a state of shape [96]");
  fs::remove(states / "fp32.pt");
  EXPECT_REFUSES(open_checkpoint(tag, 1).parameter("h.0.fc.bias"),
                 "has no fp32.pt. It holds: exp_avg.pt");
}

}  // namespace
}  // namespace anymesh
