#include "framework/format/whole/convert.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/format/layout/names.h"
#include "framework/format/sharded/sharded_checkpoint.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/whole/fp32_export.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder).string());
  }
  return files;
}

class Convert : public TempFolder {
 protected:
  fs::path output_ = folder_ / "global_step_universal";

  static fs::path answer_of(const std::string& name) {
    return resolve_tag(fixture(name) / "universal");
  }

  ConvertOptions options(const fs::path& input) const {
    return {.input = input, .output = output_, .inject_missing_info = true};
  }

  ConvertReport convert(const std::string& name) const {
    return convert_to_universal(options(tag_of(name)), {});
  }

  // Returns a copy of a ZeRO 3 checkpoint whose first parameter has another name.
  fs::path renamed(const std::string& name) const {
    const fs::path tag = copy_of("z3-fp32-dp3-frozen", folder_);
    for (int dp = 0; dp < 3; ++dp)
      change(tag / zero3_model_states_file(dp, 0), {keys::kParamShapes, 0}, [&](Value& shapes) {
        auto entries = shapes.entries();
        entries[0].first = name;
        shapes = Value::ordered_dict(entries);
      });
    return tag;
  }

  std::string refusal(const ConvertOptions& options) const {
    const std::string message = message_of([&] { convert_to_universal(options, {}); });
    EXPECT_FALSE(fs::exists(output_)) << "a failed conversion left a folder";
    EXPECT_FALSE(fs::exists(folder_ / kLatestUniversalFile));
    return message;
  }
};

// Returns our files that DeepSpeed's folder has too. Ours also has a manifest and, for the loaders
// of ZeRO 3 and of the other stages alike, the metadata under both names and a step in
// optimizer_state.pt.
std::set<std::string> theirs_of(const fs::path& ours) {
  std::set<std::string> files = files_in(ours);
  EXPECT_EQ(files.erase(std::string(kManifestFile)), 1u);
  const bool zero3 = fs::exists(ours / zero3_model_states_file(1, 0));
  for (int mp = 0; fs::exists(ours / model_states_file(mp)); ++mp)
    files.erase(zero3 ? model_states_file(mp) : zero3_model_states_file(0, mp));
  return files;
}

Value as_theirs(Value ours, const Value& theirs) {
  for (const auto key : {keys::kOptimizerStateDict, keys::kDsVersion}) {
    if (ours.is_dict() && ours.contains(keys::kParamGroups) && !theirs.contains(key))
      ours.erase(key);
  }
  return ours;
}

// DeepSpeed's ZeRO 3 folder has rank 0's flat tensors.
Value without_flat_tensors(Value theirs) {
  if (!theirs.is_dict() || !theirs.contains(keys::kFp32FlatGroups)) return theirs;
  theirs.erase(keys::kFp32FlatGroups);
  Value adam = theirs.at(keys::kOptimizerStateDict);
  auto states = adam.at(keys::kState).entries();
  for (auto& [group, state] : states) {
    state.erase(kExpAvgState);
    state.erase(kExpAvgSqState);
  }
  adam.set(keys::kState, Value::dict(std::move(states)));
  return theirs.set(keys::kOptimizerStateDict, adam);
}

// Compares with the real converter's output: the same files; in each the same keys in the same
// order, the same types, and tensors of the same dtype, shape and bytes.
void expect_same(const fs::path& ours, const fs::path& theirs, bool row_parallel_differs = false) {
  ASSERT_EQ(theirs_of(ours), files_in(theirs));
  size_t tensors = 0;
  for (const std::string& file : files_in(theirs)) {
    const Value b = without_flat_tensors(read_torch_file(theirs / file));
    Value a = as_theirs(read_torch_file(ours / file), b);
    const bool row = file.find(".self_attention.dense.weight/") != std::string::npos ||
                     file.find(".mlp.dense_4h_to_h.weight/") != std::string::npos;
    if (row && row_parallel_differs && a.is_dict()) {
      EXPECT_EQ(a.at(keys::kCatDim).as_int(), 1) << file;
      EXPECT_EQ(b.at(keys::kCatDim).as_int(), 0) << file;
      a.set(keys::kCatDim, 0);
    }
    EXPECT_TRUE(a == b) << file << ": " << a.found() << " against " << b.found();
    ++tensors;
  }
  EXPECT_GT(tensors, 40u);
}

// DeepSpeed leaves the tensors of a ZeRO 3 checkpoint flat and bare, and writes no steps. Our
// tensors have their shape, and the same bytes.
TEST_F(Convert, Zero3HasTheSameBytesAndTheShapesThatDeepSpeedLeavesOut) {
  convert("z3-fp32-dp3-frozen");
  const fs::path theirs = answer_of("z3-fp32-dp3-frozen");
  size_t tensors = 0;
  for (const std::string& file : files_in(theirs)) {
    const Value b = without_flat_tensors(read_torch_file(theirs / file));
    const Value a = as_theirs(read_torch_file(output_ / file), b);
    if (!b.is_tensor()) {
      EXPECT_TRUE(a == b) << file;
      continue;
    }
    TensorRecord tensor = a.at(keys::kParam).as_tensor();
    tensor.shape = {tensor.numel()};
    EXPECT_TRUE(Value(tensor) == b) << file;
    EXPECT_EQ(read_torch_file((output_ / file).parent_path() / state_file(kStepState)).as_int(), 4);
    ++tensors;
  }
  EXPECT_GT(tensors, 40u);
  const Value weight = read_torch_file(output_ / "zero/wte.weight/fp32.pt").at(keys::kParam);
  EXPECT_EQ(weight.as_tensor().shape.size(), 2u);
}

class SameAsDeepSpeed : public Convert, public ::testing::WithParamInterface<std::string> {};

TEST_P(SameAsDeepSpeed, FileByFile) {
  const ConvertReport report = convert(GetParam());
  EXPECT_GT(report.elements, 10000);
  expect_same(output_, answer_of(GetParam()));
  EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), output_.filename());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SameAsDeepSpeed,
                         ::testing::Values("z1-bf16-dp2", "z2-bf16-dp3", "z2-bf16-dp2-frozen",
                                           "z1-bf16-tp2pp2dp1"),
                         test_name);

// At tp 1 Megatron does not say which weights are row-parallel, so DeepSpeed's folder says cat_dim
// 0 and breaks at tp 2.
TEST_F(Convert, RowParallelWeightsOfTp1SayTheirDim) {
  convert("z1-bf16-tp1pp1dp2");
  expect_same(output_, answer_of("z1-bf16-tp1pp1dp2"), true);
}

// The real converter refuses ZeRO 0. The weights must be the checkpoint's, with the states in their
// places.
TEST_F(Convert, Zero0) {
  ConvertOptions by_order = options(tag_of("z0-fp32-dp2"));
  EXPECT_THAT(refusal(by_order), HasSubstr("--assume_module_order"));
  by_order.assume_module_order = true;
  EXPECT_EQ(convert_to_universal(by_order, {}).stage, 0);
  const Value state = read_torch_file(tag_of("z0-fp32-dp2") / model_states_file(0));
  const auto state_of = [&](const std::string& name, std::string_view kind) {
    return floats(read_torch_file(output_ / kZeroFolder / name / state_file(kind))
                      .at(keys::kParam)
                      .as_tensor());
  };
  for (const auto& [name, weight] : state.at(keys::kModule).entries()) {
    EXPECT_EQ(state_of(name.as_string(), kFp32State), floats(weight.as_tensor()))
        << name.as_string();
  }
  // The optimizer has weights first, then biases and norms. There are 10 matrices, so ln_1.weight
  // of layer 0 is the 11th.
  const auto entries = state.at(keys::kOptimizer).at(keys::kState).entries();
  EXPECT_EQ(state_of("wte.weight", kExpAvgState),
            floats(entries[0].second.at(kExpAvgState).as_tensor()));
  EXPECT_EQ(state_of("h.0.ln_1.weight", kExpAvgSqState),
            floats(entries[10].second.at(kExpAvgSqState).as_tensor()));
  EXPECT_EQ(
      read_torch_file(output_ / kZeroFolder / "wte.weight" / state_file(kStepState)).as_double(),
      4.0);
  const Value optimizer = read_torch_file(output_ / kZeroFolder / kOptimizerStateFile);
  EXPECT_EQ(optimizer.at(keys::kParamGroups).at(1).at(keys::kWeightDecay).as_double(), 0.0);
  EXPECT_TRUE(optimizer.at(keys::kLossScaler).is_object("LossScaler"));
}

// Returns a plain torch optimizer's state as DeepSpeed's FP16_Optimizer keeps it, with flat masters
// for each group. The optimizer has the matrices first, then biases and norms, each in the model's
// order. deepspeed_cases_test.cpp has real ones of the wrapper whose masters are not flat.
Value with_flat_masters(const Value& model_state) {
  const Value optimizer = model_state.at(keys::kOptimizer);
  const auto adam = optimizer.at(keys::kState).entries();
  std::vector<TensorRecord> weights[2];
  std::set<std::string> others = buffer_names(model_state);
  others.insert("lm_head.weight");  // tied
  for (const auto& [name, tensor] : module_tensors(model_state))
    if (!others.contains(name)) weights[tensor.shape.size() == 1].push_back(tensor);
  Value masters = Value::list();
  std::vector<Value::Entry> flat_states;
  for (const Value& group : optimizer.at(keys::kParamGroups).items()) {
    std::vector<float> flat[3];
    size_t count = 0;
    const auto append = [](std::vector<float>& to, const TensorRecord& tensor) {
      const std::vector<float> values = floats(tensor);
      to.insert(to.end(), values.begin(), values.end());
    };
    for (const int64_t i : group.at(keys::kParams).as_ints()) {
      const Value& moments = adam[static_cast<size_t>(i)].second;
      append(flat[0], weights[masters.size()].at(count++));
      append(flat[1], moments.at(kExpAvgState).as_tensor());
      append(flat[2], moments.at(kExpAvgSqState).as_tensor());
    }
    const Shape shape = {static_cast<int64_t>(flat[0].size())};
    flat_states.emplace_back(static_cast<int64_t>(flat_states.size()),
                             Value::dict({{kExpAvgState, float_tensor(shape, flat[1])},
                                          {kExpAvgSqState, float_tensor(shape, flat[2])},
                                          {kStepState, 4}}));
    masters.push_back(float_tensor(shape, flat[0]));
  }
  return Value::dict({{keys::kDynamicLossScale, true},
                      {keys::kCurScale, 1024.0},
                      {keys::kCurIter, 4},
                      {keys::kLastOverflowIter, -1},
                      {keys::kScaleFactor, 2.0},
                      {keys::kScaleWindow, 100},
                      {keys::kOptimizerStateDict,
                       Value::dict({{keys::kState, Value::dict(flat_states)},
                                    {keys::kParamGroups, optimizer.at(keys::kParamGroups)}})},
                      {keys::kFp32GroupsFlat, masters}});
}

TEST_F(Convert, FindsFlatMastersOfZero0) {
  const Value state = read_torch_file(tag_of("z0-fp32-dp2") / model_states_file(0));
  const Value adam = state.at(keys::kOptimizer).at(keys::kState).entries().at(10).second;
  const fs::path tag = copy_of("z0-fp32-dp2", folder_);
  change(tag / model_states_file(0),
         [](Value& v) { v.set(keys::kOptimizer, with_flat_masters(v)); });
  convert_to_universal(options(tag), {});
  const fs::path zero = output_ / kZeroFolder, parameter = zero / "h.0.ln_1.weight";
  const auto tensor_of = [&](std::string_view kind) {
    const Value file = read_torch_file(parameter / state_file(kind));
    return floats(file.at(keys::kParam).as_tensor());
  };
  const Value weight = state.at(keys::kModule).at("h.0.ln_1.weight");
  EXPECT_EQ(tensor_of(kFp32State), floats(weight.as_tensor()));
  EXPECT_EQ(tensor_of(kExpAvgState), floats(adam.at(kExpAvgState).as_tensor()));
  EXPECT_EQ(tensor_of(kExpAvgSqState), floats(adam.at(kExpAvgSqState).as_tensor()));
  const Value scaler = read_torch_file(zero / kOptimizerStateFile).at(keys::kLossScaler);
  EXPECT_TRUE(scaler.is_object("DynamicLossScaler"));
  EXPECT_EQ(scaler.at(keys::kCurScale).as_double(), 1024.0);
}

TEST_F(Convert, ReportsProgressAndPlan) {
  ConvertOptions with_plan = options(tag_of("z1-bf16-tp2pp2dp1"));
  with_plan.keep_plan = true;
  const ConvertReport report = convert_to_universal(with_plan, {});
  EXPECT_EQ(report.parameters, 52);
  EXPECT_EQ(report.tensors, 208);
  const std::string plan = read_file(output_ / "tmp" / "plan.json");
  EXPECT_THAT(plan, HasSubstr("\"parameter\": \"2.input_layernorm.weight\""));
  EXPECT_THAT(plan, HasSubstr("\"rule\": \"replicated\""));
}

TEST_F(Convert, ReplacesAnOlderResultAsAWhole) {
  fs::create_directories(output_ / kZeroFolder / "stale");
  convert("z1-bf16-dp2");
  EXPECT_FALSE(fs::exists(output_ / kZeroFolder / "stale"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);  // no .tmp, no .old
}

TEST_F(Convert, DoesNotReplaceOtherFolders) {
  write_file(folder_ / "diary", "dear diary");
  ConvertOptions bad = options(tag_of("z1-bf16-dp2"));
  bad.output = folder_;
  EXPECT_REFUSES(convert_to_universal(bad, {}), "is not a universal checkpoint");
  EXPECT_TRUE(fs::exists(folder_ / "diary"));
  bad.output = bad.input.parent_path();
  EXPECT_REFUSES(convert_to_universal(bad, {}), "inside each other");
}

TEST_F(Convert, WantsToKnowTheRules) {
  const fs::path tag = copy_of("z1-bf16-tp2pp2dp1", folder_);
  for (int mp = 0; mp < 4; ++mp)
    change(tag / model_states_file(mp), [](Value& v) { v.erase(keys::kUniversalInfo); });
  ConvertOptions plain = options(tag);
  plain.inject_missing_info = false;
  EXPECT_THAT(refusal(plain), HasSubstr("--inject_missing_state"));
  plain.input = tag_of("z1-bf16-dp2");  // one tp rank: there is nothing to merge
  const ConvertReport report = convert_to_universal(plain, {});
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_THAT(report.warnings[0], HasSubstr("there is nothing to merge"));
  expect_same(output_, answer_of("z1-bf16-dp2"));
}

TEST_F(Convert, PatternsWithoutParameterAreErrorsUnlessToldOtherwise) {
  ConvertOptions strict = options(copy_of("z1-bf16-tp2pp2dp1", folder_));
  change(strict.input / model_states_file(0), {keys::kUniversalInfo, keys::kTpReplicatedPatterns},
         [](Value& patterns) { patterns.push_back("no_such_parameter"); });
  EXPECT_THAT(
      refusal(strict),
      HasSubstr("match no parameter (--no_strict makes it a warning):\n  no_such_parameter"));
  strict.strict = false;
  const auto warnings = convert_to_universal(strict, {}).warnings;
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(),
                       "these patterns match no parameter:\n  no_such_parameter"),
            1);
}

// The fp32 partition of the second group of an optimizer file.
const std::vector<PathStep> kPartition = {keys::kOptimizerStateDict, keys::kFp32Groups, 1};

TEST_F(Convert, ValuesThatAreNotFiniteAreNamed) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_);
  change_floats(tag / optim_states_file(0, 0, true), kPartition,
                [](std::vector<float>& values) { values[3] = NAN, values[4] = -INFINITY; });
  const ConvertReport report = convert_to_universal(options(tag), {});
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_TRUE(report.warnings[0].ends_with(": 2 elements of fp32 are not finite"))
      << report.warnings[0];
}

TEST_F(Convert, APartitionThatIsTooShortIsAnError) {
  const fs::path tag = copy_of("z1-bf16-tp2pp2dp1", folder_);
  change_floats(tag / optim_states_file(0, 1, true), kPartition,
                [](std::vector<float>& values) { values.pop_back(); });
  EXPECT_THAT(refusal(options(tag)), HasSubstr("[1]: expected at least"));
}

TEST_F(Convert, NamesThatAreNoFoldersAreRefused) {
  const fs::path tag = renamed("../../escaped");
  EXPECT_THAT(refusal(options(tag)), HasSubstr("cannot name a folder"));
  const fs::path cases = fs::path(ANYMESH_TEST_DATA) / "deepspeed/cases";
  const std::string long_name = refusal(options(cases / "name-long/checkpoint/global_step3"));
  EXPECT_THAT(long_name, HasSubstr("xx...(305 bytes)...xx"));
  EXPECT_THAT(long_name, HasSubstr("it has 305 bytes, at most 255 are possible"));
  EXPECT_THAT(long_name, HasSubstr("mp_rank_00_model_states.pt: the parameter"));
}

// Such names matter only to a tool that makes folders of them.
TEST_F(Convert, NamesThatAreNoFoldersAreExported) {
  const fs::path cases = fs::path(ANYMESH_TEST_DATA) / "deepspeed/cases";
  const Value truth = read_torch_file(cases / "name-long/truth.pt").at("fp32");
  export_fp32({.checkpoint = cases / "name-long/checkpoint", .output = output_}, {});
  const Value exported = read_torch_file(output_ / kWeightsFile);
  ASSERT_EQ(exported.size(), truth.size());
  for (const auto& [name, tensor] : truth.entries())
    EXPECT_EQ(floats(exported.at(name.as_string()).as_tensor()), floats(tensor.as_tensor()));
  for (const std::string name : {"../../escaped", "a/b"}) {
    const fs::path tag = renamed(name);
    export_fp32({.checkpoint = tag, .output = folder_ / "w"}, {});
    EXPECT_TRUE(read_torch_file(folder_ / "w" / kWeightsFile).contains(name));
    fs::remove_all(tag);
  }
  EXPECT_FALSE(fs::exists(folder_.parent_path() / "escaped"));
}

// Before the first step there are no moments, but there are masters.
TEST_F(Convert, BeforeTheFirstStepOnlyWeightsAreThere) {
  const fs::path tag = copy_of("z2-bf16-dp3", folder_);
  for (int rank = 0; rank < 3; ++rank)
    change(tag / optim_states_file(rank, 0, true),
           {keys::kOptimizerStateDict, keys::kBaseOptimizerState},
           [](Value& base) { base.set(keys::kState, Value::dict()); });
  convert_to_universal(options(tag), {});
  const fs::path ours = output_ / kZeroFolder / "wte.weight",
                 theirs = answer_of("z2-bf16-dp3") / kZeroFolder / "wte.weight";
  EXPECT_EQ(files_in(ours), std::set<std::string>{"fp32.pt"});
  EXPECT_EQ(read_torch_file(ours / "fp32.pt"), read_torch_file(theirs / "fp32.pt"));
}

}  // namespace
}  // namespace anymesh
