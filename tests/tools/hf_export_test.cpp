// A model's export follows its description, and a description that does not fit is refused.

#include "framework/util/errors.h"
#include "tests/tools/hf_folder.h"
#include "tools/hf/export.h"

namespace anymesh {
namespace {

// A checkpoint with up [3, 2] of the elements 0 to 5 and a scale [3], and what export says of it.
class HfDescriptions : public TempFolder {
 protected:
  HfDescriptions() {
    write_safetensors(weights_, {{"scale", float_tensor({3}, {1, 10, 100})},
                                 {"up", float_tensor({3, 2}, {0, 1, 2, 3, 4, 5})}});
  }
  HfExport export_as(const HfDescription& description) {
    const auto describe = [&](const Checkpoint&, const TokenIds&) { return description; };
    return export_hf({.checkpoint = weights_, .output = out_}, describe, {});
  }
  std::string refusal(const std::vector<HfParameter>& parameters,
                      const std::string& config = "{}") {
    const std::string message = message_of(
        [&] { export_as({.model = "Perceptron", .config = config, .parameters = parameters}); });
    EXPECT_FALSE(fs::exists(out_)) << message;
    return message;
  }

  const fs::path weights_ = folder_ / "model.safetensors", out_ = folder_ / "out";
  const HfParameter up_{.name = "up", .shape = {3, 2}, .theirs = {{"a", {6}}}},
      scale_{.name = "scale", .shape = {3}};
};

TEST_F(HfDescriptions, SayNamesShapesOrderAndElements) {
  HfParameter up{.name = "5.up",
                 .other_name = "up",
                 .shape = {3, 2},
                 .theirs = {{"one", {2, 1}}, {"two", {2, 2}}},
                 .transposed = true,
                 .order = {{2, 1}, {0, 2}},
                 .change = [](int64_t first, std::span<float> elements) {
                   for (size_t i = 0; i < elements.size(); ++i)
                     elements[i] += 10.0f * static_cast<float>(first + static_cast<int64_t>(i));
                 }};
  const HfExport report = export_as({.model = "Perceptron",
                                     .config = "{\"model_type\": \"mine\"}",
                                     .parameters = {up, scale_},
                                     .notes = {"a note"}});
  EXPECT_EQ(report.model, "Perceptron");
  EXPECT_THAT(report.notes, ElementsAre("a note"));
  EXPECT_EQ(read_file(out_ / kHfConfigFile), "{\"model_type\": \"mine\"}");
  const Checkpoint exported = open_checkpoint(out_, 1);
  EXPECT_THAT(exported.names(), ElementsAre("one", "two"));
  EXPECT_EQ(exported.parameter("one").shape, (Shape{2, 1}));
  EXPECT_THAT(floats(exported.parameter("one").weight()), ElementsAre(44, 55));
  EXPECT_THAT(floats(exported.parameter("two").weight()), ElementsAre(0, 22, 11, 33));
}

TEST_F(HfDescriptions, MustHaveTheCheckpointsParameters) {
  EXPECT_THAT(refusal({up_}), HasSubstr(": has scale, which no Perceptron of its shape has"));
  EXPECT_THAT(refusal({up_, scale_, {.name = "down", .shape = {2, 3}}}),
              HasSubstr("has no parameter down"));
  EXPECT_THAT(refusal({up_, {.name = "scale", .shape = {4}}}),
              HasSubstr(": scale is [3], expected [4]"));
}

TEST_F(HfDescriptions, MustPutEachElementInOnePlace) {
  const auto changed = [&](auto change) {
    HfParameter up = up_;
    change(up);
    return refusal({up, scale_});
  };
  EXPECT_THAT(changed([](HfParameter& up) {
                up.theirs[0].shape = {3, 3};
              }),
              HasSubstr("up [3, 2]: its elements do not fill a [3, 3]"));
  EXPECT_THAT(changed([](HfParameter& up) {
                up.theirs = {{"a", {3, 2}}, {"b", {1}}};
              }),
              HasSubstr("do not fill a [3, 2], b [1]"));
  EXPECT_THAT(changed([](HfParameter& up) {
                up.theirs[0].shape = {3, 2};  // not the transpose
                up.transposed = true;
              }),
              HasSubstr("do not fill a [3, 2]"));
  for (const std::vector<HfParameter::Rows>& order :
       {std::vector<HfParameter::Rows>{{0, 2}}, {{0, 2}, {1, 1}}, {{0, 2}, {2, 2}}, {{0, -1}}})
    EXPECT_THAT(changed([&](HfParameter& up) { up.order = order; }),
                HasSubstr("its order does not have each row once"));
  EXPECT_THAT(refusal({up_, {.name = "scale", .shape = {3}, .theirs = {{"a", {3}}}}}),
              HasSubstr("scale: another one has a"));
}

TEST_F(HfDescriptions, MustHaveAConfigInJson) {
  EXPECT_THAT(refusal({up_, scale_}, "{"), HasSubstr("config.json is no JSON"));
}

TEST_F(HfDescriptions, GetTheIdsOfTheTokenizersFiles) {
  fs::create_directory(folder_ / "tokenizer");
  write_file(folder_ / "tokenizer" / "generation_config.json", "{\"eos_token_id\": [2, 5]}");
  TokenIds found;
  const auto describe = [&](const Checkpoint&, const TokenIds& ids) {
    found = ids;
    return HfDescription{.config = "{}", .parameters = {up_, scale_}};
  };
  export_hf({.checkpoint = weights_, .output = out_, .tokenizer = folder_ / "tokenizer"}, describe,
            {});
  EXPECT_EQ(found, (TokenIds{{"eos_token_id", {2, 5}}}));
  EXPECT_TRUE(fs::exists(out_ / "generation_config.json"));
}

int run(const std::vector<std::string>& words, const DescribeHf& describe) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  return hf_export(static_cast<int>(argv.size()), argv.data(), "export_mine", describe);
}

TEST_F(HfDescriptions, MakeAProgram) {
  const auto describe = [&](const Checkpoint&, const TokenIds&) {
    return HfDescription{.model = "MLP", .config = "{}", .parameters = {up_, scale_}};
  };
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"export_mine", weights_, out_}, describe), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("out: MLP, 1 tensors"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"export_mine", weights_}, describe), 2);
  EXPECT_EQ(run({"export_mine", weights_, out_, "--tagg", "x"}, describe), 2);
  EXPECT_EQ(run({"export_mine", weights_, out_, "--dtype", "int8"}, describe), 2);
  EXPECT_EQ(run({"export_mine", folder_ / "absent", out_}, describe), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstrs("export_mine: expected two folders, from and to", "did you mean --tag?",
                         "the dtype int8 is not supported", "absent"));
}

}  // namespace
}  // namespace anymesh
