#include "framework/format/dialects.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

Outcome convert(const fs::path& from, const fs::path& to, const ConvertRequest& request) {
  std::ostringstream out;
  const int code = convert_checkpoint(from, to, request, {.workers = 2}, out);
  return {code, out.str()};
}

using CkptConvert = Ckpt;

TEST_F(CkptConvert, GoesToEachFormatAndBack) {
  const fs::path source = tag_of("z3-fp32-dp3-frozen"), dcp = folder_ / "dcp";
  expect_well(convert(source, dcp, {.to = "dcp"}), "torch.distributed.checkpoint of ");
  expect_well(verify(dcp), "no problem");
  expect_well(diff(source, dcp), "0 differences");
  const fs::path back = folder_ / "global_step4", universal = folder_ / "universal";
  expect_well(convert(dcp, back, {.to = "deepspeed", .target = "dp=2,zero=2"}),
              "ZeRO 2, tp 1, pp 1, dp 2");
  expect_well(verify(back), "no problem");
  expect_well(diff(source, back), "0 differences");
  expect_well(convert(dcp, universal, {.to = "universal"}), "universal checkpoint of ");
  expect_well(diff(source, universal), "0 differences");
}

TEST_F(CkptConvert, KeysOfTheDictsMayBeOthers) {
  const fs::path dcp = folder_ / "dcp";
  convert(tag_of("z1-fp32-dp2"), dcp,
          {.to = "dcp", .model_key = "m", .optimizer_key = "optimizer"});
  const DcpFolder folder = read_dcp(dcp);
  EXPECT_TRUE(folder.tensors.begin()->first.starts_with("m."));
  EXPECT_FALSE(dcp_model(folder).groups.empty());
}

TEST_F(CkptConvert, OfWeightsTheModelAlone) {
  const fs::path dcp = folder_ / "dcp";
  const Outcome outcome = convert(exported("z1-fp32-dp2"), dcp, {.to = "dcp"});
  expect_well(outcome, "only the model is written");
  EXPECT_THAT(message_of([&] { convert(dcp, folder_ / "global_step4", {.to = "deepspeed"}); }),
              HasSubstr("has no optimizer's state"));
  EXPECT_THAT(message_of([&] { convert(dcp, folder_ / "u", {.to = "universal"}); }),
              HasSubstr("has no optimizer's state"));
}

TEST_F(CkptConvert, RefusesAnUnknownFormat) {
  EXPECT_THAT(message_of([&] { convert(tag_of("z1-fp32-dp2"), folder_ / "x", {.to = "fsdp"}); }),
              HasSubstr("--to: expected dcp, deepspeed or universal, found 'fsdp'"));
  EXPECT_THAT(message_of([&] {
                convert(tag_of("z1-fp32-dp2"), folder_ / "x",
                        {.to = "deepspeed", .target = "dq=2"});
              }),
              HasSubstr("--target"));
}

}  // namespace
}  // namespace anymesh
