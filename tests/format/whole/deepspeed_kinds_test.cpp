// Kinds of DeepSpeed's checkpoints that are made here by a change to real ones, and notes on them.

#include <functional>

#include "framework/format/sharded/tensor_views.h"
#include "framework/format/whole/convert.h"
#include "framework/format/whole/fp32_export.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

// A test of a changed checkpoint.
class DeepSpeedKinds : public Ckpt {
 protected:
  fs::path copy_of_case(const std::string& name) {
    const fs::path tag = folder_ / name;
    fs::copy(resolve_tag(fs::path(ANYMESH_CASES) / name / "checkpoint"), tag,
             fs::copy_options::recursive);
    return tag;
  }

  Checkpoint converted(const fs::path& tag) {
    convert_to_universal({.input = tag, .output = folder_ / "universal"}, {});
    return open_checkpoint(folder_ / "universal", 1);
  }

  static std::string refusal(const fs::path& tag) {
    return message_of(
        [&] { convert_to_universal({.input = tag, .output = tag.string() + "_universal"}, {}); });
  }

  // Changes the states of each group of a ZeRO 1 or 2 checkpoint.
  static void change_states(const fs::path& tag, const std::function<void(Value&)>& edit) {
    for (const auto& entry : fs::directory_iterator(tag)) {
      const auto name = parse_checkpoint_file_name(entry.path().filename().string());
      if (name && name->kind == CheckpointFileName::Kind::kOptimStates)
        change(entry.path(), kEachState, edit);
    }
  }
};

TEST_F(DeepSpeedKinds, NamesInParamGroupsTellTheOrder) {
  const fs::path tag = copy_of_case("z0-fp32-order");
  change(tag / model_states_file(0), {keys::kOptimizer, keys::kParamGroups, 0}, [](Value& group) {
    group.set(keys::kParamNames, Value::list({"dec.weight", "dec.bias", "enc.weight", "enc.bias"}));
  });
  const Checkpoint universal = converted(tag);
  const Value truth = read_torch_file(fs::path(ANYMESH_CASES) / "z0-fp32-order" / "truth.pt");
  for (const auto& [name, states] : truth.at("state").entries())
    for (const std::string_view state : {kExpAvgState, kExpAvgSqState})
      EXPECT_EQ(floats(universal.parameter(name.as_string()).state(state)),
                floats(states.at(state).as_tensor()));
}

// Numbers for 8 rows may be those of a matrix or of a bias. Numbers of 8 bits are no state that
// is understood.
TEST_F(DeepSpeedKinds, OtherStatesOfZeRO0AreRefusedByName) {
  const auto refusal_with = [&](const std::string& folder, const Value& states) {
    const fs::path tag = copy_of_case("z0-fp32-order");
    fs::rename(tag, folder_ / folder);
    change(folder_ / folder / model_states_file(0), {keys::kOptimizer, keys::kState},
           [&](Value& v) {
             v = Value::dict({{0, states}});
           });
    return refusal(folder_ / folder);
  };
  const TensorRecord eight = float_tensor({8}, std::vector<float>(8)),
                     bytes{DType::kUInt8, {8, 8}, false, bytes_of(std::vector<uint8_t>(64))};
  EXPECT_THAT(refusal_with("factored", Value::dict({{"row", eight}, {"column", eight}})),
              HasSubstr("['row']: may be that of enc.bias or of dec.bias, by its shape [8]"));
  EXPECT_THAT(refusal_with("bytes", Value::dict({{"state1", bytes}})),
              HasSubstr("['state1']: expected floating-point numbers, found uint8 tensor"));
}

// Equal masters cannot be told apart. Their parameters get the model's weights, the others get
// masters.
TEST_F(DeepSpeedKinds, MastersOfEqualWeightsAreNotGuessed) {
  const fs::path tag = copy_of_case("z0-bf16-order");
  for (const char* bias : {"enc.bias", "dec.bias"})
    change(tag / model_states_file(0), {keys::kModule, bias}, [](Value& v) {
      v = TensorRecord{DType::kBFloat16, {8}, false, bytes_of(std::vector<uint16_t>(8))};
    });
  for (const int master : {1, 3})
    change(tag / model_states_file(0), {keys::kOptimizer, keys::kFp32GroupsUnfused, 0, master},
           [](Value& v) { v = float_tensor({8}, std::vector<float>(8)); });
  EXPECT_THAT(refusal(tag), HasSubstr("may be those of enc.bias or of dec.bias"));
  const Checkpoint whole = open_checkpoint(tag, 1);
  EXPECT_TRUE(whole.weights_rounded);
  const Value optimizer = read_torch_file(tag / model_states_file(0)).at(keys::kOptimizer);
  EXPECT_EQ(floats(whole.parameter("dec.weight").weight()),
            floats(optimizer.at(keys::kFp32GroupsUnfused).at(0).at(0).as_tensor()));
  EXPECT_EQ(floats(whole.parameter("dec.bias").weight()), std::vector<float>(8, 0));
}

TEST_F(DeepSpeedKinds, OtherOptimizersHaveFilesOfTheirStates) {
  const fs::path tag = copy_of_case("amsgrad");
  change_states(tag, [](Value& states) {  // Lion, say
    states.erase(kExpAvgSqState).erase("max_exp_avg_sq");
  });
  const SavedParameter lion = converted(tag).parameter("a.weight");
  EXPECT_EQ(lion.states.size(), 2u);
  EXPECT_TRUE(lion.state(kExpAvgState).bytes);
  EXPECT_EQ(verify(folder_ / "universal").code, 0);

  change_states(tag, [](Value& states) { states.set("row", float_tensor({3}, {1, 2, 3})); });
  EXPECT_THAT(refusal(tag), HasSubstr("['row']: expected a floating-point number for each of 118"));
  change_states(tag, [](Value& states) { states.set(kExpAvgState, float_tensor({2}, {1, 2})); });
  EXPECT_EQ(verify(tag).code, 1);  // damaged moments are not another optimizer's
}

// NAdam's mu_product goes into optimizer_state.pt, as DeepSpeed takes a file of a parameter for a
// tensor. Ranks must agree on it.
TEST_F(DeepSpeedKinds, SingleNumbersAreKept) {
  const fs::path tag = copy_of_case("amsgrad");
  change_states(tag, [](Value& states) { states.set("mu_product", float_tensor({}, {0.5f})); });
  const Checkpoint universal = converted(tag);
  const Value torch = universal.optimizer_state.at(keys::kOptimizerStateDict);
  for (const auto& [group, numbers] : torch.at(keys::kState).entries()) {
    EXPECT_EQ(numbers.at("mu_product").as_double(), 0.5);
    EXPECT_FALSE(numbers.contains(kExpAvgState));
  }
  EXPECT_FALSE(universal.parameter("a.weight").states.contains("mu_product"));
  float next = 0;
  change_states(tag, [&](Value& states) { states.set("mu_product", float_tensor({}, {++next})); });
  EXPECT_THAT(refusal(tag), HasSubstr("['mu_product']: expected "));
}

// Adafactor computes its RMS anew: ranks and parameters differ in it.
TEST_F(DeepSpeedKinds, NotesANumberThatEachStepComputesAnew) {
  const fs::path universal = folder_ / "universal";
  const ConvertReport report = convert_to_universal(
      {.input = fixture("jobs/adafactor-z2") / "checkpoint", .output = universal}, {});
  EXPECT_THAT(report.warnings, Contains(StartsWith("RMS: ")));
}

TEST_F(DeepSpeedKinds, NotesAJobWithoutChecksums) {
  const fs::path source = fixture("jobs/crc32-off-z2") / "checkpoint";
  const auto note = Contains(HasSubstr("torch wrote no checksums"));
  EXPECT_THAT(convert_to_universal({.input = source, .output = folder_ / "u"}, {}).warnings, note);
  EXPECT_THAT(export_fp32({.checkpoint = source, .output = folder_ / "w"}, {}).notes, note);
  EXPECT_TRUE(verify(source).says("note: ") && verify(source).says("torch wrote no checksums"));
  EXPECT_TRUE(verify(folder_ / "u").says("(and 1 more): torch wrote no checksums"));
}

// Older versions recorded nothing.
TEST_F(DeepSpeedKinds, NamesTheVersionThatRecordedNoShapes) {
  const fs::path tag = folder_ / "tag";
  fs::copy(fixture("jobs/v0.4.5-z2") / "checkpoint" / "checkpoint", tag);
  for (int dp = 0; dp < 2; ++dp)
    change(tag / optim_states_file(dp, 0, false), [](Value& v) { v.erase(keys::kParamShapes); });
  EXPECT_THAT(refusal(tag), HasSubstr("It is of DeepSpeed '0.4.5'"));
  EXPECT_THAT(refusal(tag), HasSubstr("0.5.5 or later"));
  EXPECT_EQ(fp32_tensors(open_checkpoint(tag, 1), false).size(), 13u);
}

// At ZeRO 3 each rank has the model's file too, with frozen parameters.
TEST_F(DeepSpeedKinds, ReadsUlyssesNamesAtZeRO3) {
  const fs::path plain = tag_of("z3-fp32-dp3-frozen"), tag = folder_ / "sp";
  fs::create_directory(tag);
  for (const auto& entry : fs::directory_iterator(plain)) {
    const auto name = parse_checkpoint_file_name(entry.path().filename().string());
    if (!name) continue;
    const int sp = name->dp_rank;  // sequence parallel over all three
    fs::copy(entry.path(), tag / (name->is_model_states() ? zero3_model_states_file(sp, sp)
                                                          : optim_states_file(sp, sp, false)));
  }
  EXPECT_EQ(verify(tag).code, 0) << verify(tag).text;
  EXPECT_EQ(diff(plain, tag).code, 0) << diff(plain, tag).text;
  convert_to_universal({.input = tag, .output = folder_ / "universal"}, {});
  EXPECT_EQ(diff(plain, folder_ / "universal").code, 0);
  fs::remove(tag / optim_states_file(1, 1, false));
  EXPECT_THAT(refusal(tag), HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt"));
}

TEST_F(DeepSpeedKinds, TheToolsTakeTheFolderAboveATag) {
  const fs::path above = folder_ / "above", tag = copy_of("z2-bf16-dp3", above, "global_step4");
  const auto notes = [&](const std::string& name) {
    return convert_to_universal({.input = above, .output = folder_ / name}, {}).warnings;
  };
  const auto only = Contains(HasSubstr("the only tag there is used, global_step4"));
  EXPECT_THAT(notes("only"), only);
  EXPECT_THAT(export_fp32({.checkpoint = above, .output = folder_ / "w"}, {}).notes, only);
  EXPECT_EQ(diff(above, tag).code, 0);
  for (const Outcome& outcome : {verify(above), inspect(above)})
    EXPECT_TRUE(outcome.code == 0 && outcome.says("the only tag there is used")) << outcome.text;
  fs::copy(tag, above / "global_step5");
  EXPECT_REFUSES(notes("two"), "several tags; give the folder of one: glob");
  write_file(above / kLatestFile, "global_step5");
  EXPECT_THAT(notes("latest"), Not(only));
  convert_to_universal({.input = above, .output = above / "global_step5_universal"}, {});
}

TEST_F(DeepSpeedKinds, ZeRO3ConvertsAnyState) {
  const fs::path tag = tag_of("z3-fp32-dp3-frozen"), copy = copy_of("z3-fp32-dp3-frozen", folder_);
  for (int dp = 0; dp < 3; ++dp) {
    change(
        copy / optim_states_file(dp, 0, false),
        {keys::kOptimizerStateDict, keys::kOptimizerStateDict, keys::kState, kEach},
        [](Value& adam) {  // Adagrad's
          adam = Value::dict({{"sum", adam.at(kExpAvgSqState)}, {kStepState, adam.at(kStepState)}});
        });
  }
  const Checkpoint adam = open_checkpoint(tag, 1), adagrad = converted(copy);
  size_t trained = 0;
  for (const std::string& name : adam.names()) {
    const SavedParameter a = adam.parameter(name), b = adagrad.parameter(name);
    EXPECT_EQ(b.has_moments(), a.has_moments()) << name;
    if (!a.has_moments()) continue;
    ++trained;
    EXPECT_EQ(floats(b.state("sum")), floats(a.state(kExpAvgSqState))) << name;
  }
  EXPECT_GT(trained, 10u);
}

TEST_F(DeepSpeedKinds, FrozenIntegersKeepTheirBits) {
  const fs::path tag = copy_of_case("frozen-uint8");
  const std::vector<int64_t> values = {16777217, (int64_t{1} << 53) + 1};
  change(tag / model_states_file(0), [&](Value& v) {
    const TensorRecord q{DType::kInt64, {2}, false, bytes_of(values)};
    for (const auto key : {keys::kModule, keys::kFrozenParamFragments})
      v.set(key, v.at(key).set("q", q));
    v.set(keys::kFrozenParamShapes, v.at(keys::kFrozenParamShapes).set("q", Value::size(Shape{2})));
  });
  for (const Checkpoint& whole : {open_checkpoint(tag, 1), converted(tag)}) {
    const TensorRecord q = whole.parameter("q").weight();
    EXPECT_EQ(q.dtype, DType::kInt64);
    EXPECT_FALSE(q.requires_grad);
    EXPECT_EQ(read_bytes(q), read_bytes(*bytes_of(values)));
  }
}

TEST_F(DeepSpeedKinds, StagesMustAgreeOnATiedLayer) {
  const fs::path tag = copy_of_case("pipeline-tied");
  change_floats(tag / optim_states_file(0, 1, true),
                {keys::kOptimizerStateDict, keys::kFp32Groups, 0},
                [](std::vector<float>& values) { values[5] += 1; });
  EXPECT_THAT(refusal(tag), HasSubstr("tied_modules.embed.weight (fp32): should be the same on all "
                                      "pipeline stages"));
  EXPECT_EQ(verify(tag).code, 1);
}

TEST_F(DeepSpeedKinds, ALayerThatCannotBeToldFromAnotherIsRefused) {
  const fs::path tag = copy_of_case("pipeline-tied");
  fs::copy(tag / "layer_00-model_states.pt", tag / "layer_05-model_states.pt");
  EXPECT_THAT(refusal(tag),
              HasSubstr("layer_00-model_states.pt: either this or layer_05-model_states.pt "
                        "is tied_modules.embed.*"));
}

TEST_F(DeepSpeedKinds, FrozenParametersOfZeRO1AreLeftOutWhenAsked) {
  const fs::path tag = copy_of_case("pipeline-frozen");
  const NamedTensors tensors = fp32_tensors(open_checkpoint(tag, 1), /*exclude_frozen=*/true);
  EXPECT_EQ(tensors.size(), 10u);  // 6 trained, 4 buffers
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(name != "1.weight" && name != "2.l.weight");
  const Checkpoint zero0 = open_checkpoint(copy_of_case("z0-frozen"), 1);
  EXPECT_REFUSES(fp32_tensors(zero0, true), "drop --exclude_frozen_parameters");
}

}  // namespace
}  // namespace anymesh
