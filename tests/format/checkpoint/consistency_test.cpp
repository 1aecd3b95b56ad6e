// Checkpoints put together from two saves, or of other ranks' files: whoever opens one refuses it,
// and names the file and both values. Nothing here has a manifest, as DeepSpeed's checkpoints have
// none.

#include <cmath>

#include "framework/format/reshard.h"
#include "framework/format/whole.h"
#include "tests/support/opens.h"
#include "tests/support/synthetic.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

using ::testing::Each;

class MixedSaves : public TempFolder {
 protected:
  // Returns the errors of all that open a checkpoint, and the problems that `ckpt verify` finds.
  std::vector<std::string> refusals(const fs::path& tag, const std::string& target = "dp=2") {
    const fs::path out = folder_ / "out";
    RecordChecksums checks;
    return {message_of([&] { open_checkpoint(tag, 2, &checks); }),
            message_of([&] { export_fp32({.checkpoint = tag, .output = out / "fp32"}, {}); }),
            message_of([&] { convert_to_universal({.input = tag, .output = out / "u"}, {}); }),
            message_of([&] {
              reshard({.input = tag,
                       .output = out / "tag" / "global_step1",
                       .target = ReshardTarget::parse(target)},
                      {});
            }),
            verify(tag).text};
  }
};

TEST_F(MixedSaves, AStagesOptimizerOfAnotherStep) {
  const fs::path tag = copy_of(kMesh, folder_);
  for (const int mp : {2, 3})
    change(tag / optim_states_file(0, mp, true), kEachState,
           [](Value& adam) { adam.set(kStepState, 8); });
  EXPECT_THAT(refusals(tag), Each(HasSubstr("step is 8, but 10 in ")));
  EXPECT_THAT(refusals(tag), Each(HasSubstr(optim_states_file(0, 2, true))));
}

TEST_F(MixedSaves, ModelStatesOfAnEarlierStep) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_);
  change(tag / model_states_file(0), [](Value& v) { v.set(keys::kGlobalSteps, 2); });
  EXPECT_THAT(refusals(tag, "dp=3"), Each(HasSubstr("the optimizer made 4 steps, but ")));
  EXPECT_THAT(refusals(tag, "dp=3"), Each(HasSubstr("['global_steps'] says 2")));
}

TEST_F(MixedSaves, ModelStatesOfRanksAtDifferentSteps) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / model_states_file(3), [](Value& v) { v.set(keys::kIteration, 9); });
  EXPECT_THAT(refusals(tag), Each(HasSubstr("iteration is 9, but 10 in ")));
}

TEST_F(MixedSaves, SwappedOptimizersOfTensorParallelRanks) {
  const fs::path tag = copy_of(kMesh, folder_), one = tag / optim_states_file(0, 0, true),
                 other = tag / optim_states_file(0, 1, true);
  fs::rename(one, tag / "swap");
  fs::rename(other, one);
  fs::rename(tag / "swap", other);
  for (const char* target : {"dp=2", "tp=1"})
    EXPECT_THAT(refusals(tag, target), Each(HasSubstr("are not the rounded masters")));
}

TEST_F(MixedSaves, ARanksCopyOfAnothersPartition) {
  const fs::path tag = copy_of("z3-fp32-dp3-frozen", folder_),
                 one = tag / optim_states_file(1, 0, false);
  ASSERT_TRUE(fs::exists(one));
  fs::copy_file(one, tag / optim_states_file(0, 0, false), fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusals(tag), Each(HasSubstr("has the masters of another rank")));
}

TEST_F(MixedSaves, RanksThatDisagreeAboutAShape) {
  const fs::path tag = copy_of("z3-fp32-dp3-frozen", folder_);
  change(tag / zero3_model_states_file(1, 0), {keys::kFrozenParamShapes, 0},
         [](Value& shape) { shape = Value::size(Shape{1}); });
  EXPECT_THAT(refusals(tag), Each(HasSubstr(" is [1], but [")));
  EXPECT_THAT(refusals(tag), Each(HasSubstr(zero3_model_states_file(1, 0))));
}

TEST_F(MixedSaves, ALayerFileWithAShortWeight) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / layer_states_file(3, 0), {"mlp.dense_h_to_4h.bias"},
         [](Value& v) { v = v.as_tensor().slice(0, {v.as_tensor().numel() - 1}); });
  EXPECT_THAT(refusals(tag), Each(HasSubstr("3.mlp.dense_h_to_4h.bias has the shape [")));
  EXPECT_THAT(refusals(tag), Each(HasSubstr(layer_states_file(3, 0))));
}

// Single weights may have been changed by intent: only `ckpt verify` says so.
TEST_F(MixedSaves, VerifyComparesAllWeightsWithTheirMasters) {
  const fs::path tag = copy_of("z1-fp32-dp2", folder_);
  const std::string name = "h.0.fc.weight";
  change_floats(tag / model_states_file(0), {keys::kModule, name},
                [](std::vector<float>& values) { values.at(100) = NAN, values.at(200) += 1; });
  EXPECT_EQ(message_of([&] { open_checkpoint(tag, 2); }), "");
  expect_problem(verify(tag),
                 name + ": weights of pp 0, tp 0 (" + model_states_file(0) +
                     "): 2 of 2304 elements are not the rounded masters, first element "
                     "100: nan, expected ");
}

TEST_F(MixedSaves, NoneOfTheFixturesIsRefused) {
  for (const std::string& name : kConverted) {
    RecordChecksums checks;
    EXPECT_EQ(message_of([&] { open_checkpoint(tag_of(name), 2, &checks); }), "") << name;
  }
}

TEST_F(MixedSaves, AnUnpartitionedOptimizersParametersAreCounted) {
  const ReshardReport report = reshard({.input = tag_of("z0-fp32-dp2"),
                                        .output = folder_ / "tag" / "global_step1",
                                        .target = ReshardTarget::parse("dp=3")},
                                       {});
  EXPECT_GT(report.parameters, 16);
  EXPECT_GT(report.elements, 1000);
}

// A file is opened once to plan, and once more if it is copied as it is.
TEST_F(MixedSaves, EachFileIsOpenedOnce) {
  const auto expect_once = [](const fs::path& tag, const std::string& copied, const auto& work) {
    const Opens opens(tag);
    work();
    const auto counts = opens.counts();
    EXPECT_GT(counts.size(), 3u);
    for (const auto& [file, count] : counts)
      EXPECT_LE(count, file.starts_with(copied) ? 2 : 1) << file;
  };
  for (const std::string& name : {kMesh, std::string("z3-fp32-dp3-frozen")}) {
    const fs::path out = folder_ / name;
    fs::create_directory(out);
    const fs::path tag = copy_of(name, out);  // that no other test opens
    const std::string copied = name == kMesh ? "mp_rank" : "zero_pp_rank";
    expect_once(tag, copied,
                [&] { convert_to_universal({.input = tag, .output = out / "u"}, {}); });
    expect_once(tag, "-", [&] { export_fp32({.checkpoint = tag, .output = out / "fp32"}, {}); });
    for (const std::string target : {"dp=2", "tp=1", "zero=1,dtype=fp32"})
      expect_once(tag, "layer", [&] {
        reshard({.input = tag,
                 .output = out / target / "global_step1",
                 .target = ReshardTarget::parse(target)},
                {});
      });
  }
}

}  // namespace
}  // namespace anymesh
