#include <sys/stat.h>

#include <algorithm>

#include "framework/format/checkpoint/model.h"
#include "framework/format/torch_file/safetensors.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

using Kind = Checkpoint::Kind;

class SameWhole : public ::testing::TestWithParam<std::string> {};

// Compares the real converter's folder with its source, every tensor and shape.
TEST_P(SameWhole, OrdinaryAndUniversal) {
  const Checkpoint ordinary = open_checkpoint(fixture(GetParam()) / "checkpoint", 2),
                   universal = open_checkpoint(fixture(GetParam()) / "universal", 2);
  EXPECT_EQ(ordinary.kind, Kind::kOrdinary);
  EXPECT_EQ(universal.kind, Kind::kUniversal);
  EXPECT_EQ(ordinary.metadata.at(keys::kDpWorldSize), universal.metadata.at(keys::kDpWorldSize));
  ASSERT_EQ(ordinary.names(), universal.names());
  EXPECT_GT(ordinary.names().size(), 16u);
  for (const std::string& name : ordinary.names()) {
    const SavedParameter a = ordinary.parameter(name), b = universal.parameter(name);
    EXPECT_EQ(a.shape, b.shape) << name;
    EXPECT_EQ(static_cast<bool>(a.step), static_cast<bool>(b.step)) << name;
    if (a.step) {
      EXPECT_EQ(a.step.as_double(), b.step.as_double()) << name;
    }
    ASSERT_EQ(a.states.size(), b.states.size()) << name;
    for (const auto& [state, tensor] : a.states) {
      ASSERT_TRUE(b.state(state).bytes) << name << " " << state;
      EXPECT_EQ(tensor.shape, a.shape);
      EXPECT_EQ(read_bytes(tensor), read_bytes(b.state(state))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SameWhole, ::testing::ValuesIn(kConverted), test_name);

class Whole : public TempFolder {};

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

TEST_F(Whole, TensorsThatZero3LeavesFlatGetTheirShapes) {
  const Checkpoint universal = open_checkpoint(fixture("z3-fp32-dp3-frozen") / "universal", 2);
  const SavedParameter weight = universal.parameter("h.1.attn.weight");
  EXPECT_EQ(weight.shape, (Shape{72, 24}));
  EXPECT_EQ(weight.step.as_double(), 4);
}

// Copies under second names have the model's precision; the first name has masters.
TEST_F(Whole, TiedNamesStandForTheSameParameter) {
  const Checkpoint checkpoint = open_checkpoint(tag_of("z1-bf16-dp2"), 2);
  ASSERT_TRUE(checkpoint.metadata.at(keys::kSharedParams).contains("head.weight"));
  const SavedParameter head = checkpoint.parameter("head.weight"),
                       wte = checkpoint.parameter("wte.weight");
  EXPECT_EQ(floats(head.weight()), floats(wte.weight()));
  EXPECT_EQ(floats(head.state(kExpAvgState)), floats(wte.state(kExpAvgState)));
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

TEST_F(Whole, TpNeedsToBeToldHowShardsAreMerged) {
  const fs::path tag = copy_of("z1-bf16-tp2pp2dp1", folder_);
  change(tag / model_states_file(0), [](Value& v) { v.erase(keys::kUniversalInfo); });
  EXPECT_THAT(refusal(tag), HasSubstr("nothing says how the shards of tp 2 are merged"));
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
