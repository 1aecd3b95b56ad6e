#include "tools/ckpt.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "checkpoints.h"
#include "framework/checkpoint/format/merged_tensor.h"
#include "framework/checkpoint/format/safetensors.h"
#include "framework/checkpoint/format/whole_checkpoint.h"
#include "framework/checkpoint/format/zip.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using ::testing::TestWithParam;

struct Outcome {
  int code = 0;
  std::string text;
  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

Outcome verify(const fs::path& path) {
  std::ostringstream out;
  const int code = verify_checkpoint(path, {.workers = 2}, out);
  return {code, out.str()};
}

Outcome diff(const fs::path& a, const fs::path& b, bool all = false) {
  std::ostringstream out;
  const int code = diff_checkpoints(a, b, {.workers = 2, .all = all}, out);
  return {code, out.str()};
}

Outcome inspect(const fs::path& path, bool all = false) {
  std::ostringstream out;
  const int code = inspect_checkpoint(path, {.workers = 2, .all = all}, out);
  return {code, out.str()};
}

void expect_problem(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(outcome.says(part)) << outcome.text;
}

class Converted : public TestWithParam<std::string> {};

TEST_P(Converted, DiffersInNothing) {
  const Outcome outcome =
      diff(fixture(GetParam()) / "checkpoint", fixture(GetParam()) / "universal");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_TRUE(outcome.says(" tensors compared, 0 differences\n"));
}

TEST_P(Converted, IsWhole) {
  const Outcome outcome = verify(fixture(GetParam()) / "universal");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_TRUE(outcome.says("no problem"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Converted, ::testing::ValuesIn(kConverted), test_name);

class Intact : public TestWithParam<std::string> {};

TEST_P(Intact, HasNoProblem) {
  const Outcome outcome = verify(fixture(GetParam()) / "checkpoint");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Intact,
                         ::testing::Values("z0-fp32-dp2", "z1-bf16-dp2", "z2-bf16-dp3",
                                           "z2-bf16-dp2-frozen", "z3-fp32-dp3-frozen",
                                           "z1-bf16-tp2pp2dp1"),
                         test_name);

class Ckpt : public TempFolder {
 protected:
  // The masters of a checkpoint as zero_to_fp32 exports them.
  fs::path exported(const std::string& name) {
    const WholeCheckpoint whole = open_whole_checkpoint(tag_of(name), 2);
    Value weights = Value::ordered_dict();
    for (const std::string& parameter : whole.names())
      weights.set(parameter, whole.parameter(parameter).states[kFp32]);
    write_torch_file(folder_ / "pytorch_model.bin", weights);
    return folder_ / "pytorch_model.bin";
  }
};

const std::string kMesh = "z1-bf16-tp2pp2dp1";

// ---- diff

TEST_F(Ckpt, DiffComparesTheWeightsOfAnExport) {
  const fs::path file = exported(kMesh);
  const Outcome same = diff(tag_of(kMesh), folder_);
  EXPECT_EQ(same.code, 0) << same.text;
  EXPECT_TRUE(same.says("52 parameters, 52 tensors compared, 0 differences"));
  change(file, [](Value& v) {
    v.erase("6.weight").set("7.weight", float_tensor({1}, {1}));
    v.set("6.bias", float_tensor({1}, {1}));
    std::vector<float> values = floats(*v.at("2.input_layernorm.weight").as_tensor().bytes);
    values[3] += 0.5f;
    values[5] -= 2;
    v.set("2.input_layernorm.weight", float_tensor({64}, values));
  });
  const Outcome outcome = diff(tag_of(kMesh), file);
  for (const char* line :
       {"\n2.input_layernorm.weight fp32: differs in 2 of 64 elements, at most by 2.000e+00 at "
        "element 5\n",
        "\n6.bias fp32: float32 tensor of shape [64] in A, float32 tensor of shape [1] in B\n",
        "\n6.weight: only in A\n", "\n7.weight: only in B\n",
        "\n53 parameters, 51 tensors compared, 4 differences\n"})
    expect_problem(outcome, line);
}

// As the export of DeepSpeed's script has them.
TEST_F(Ckpt, DiffTellsPaddingOfTheVocabularyFromADifference) {
  const std::string table = "tied_modules.embed.word_embeddings.weight";
  const fs::path file = exported(kMesh);
  const auto add_rows = [&](const std::string& name, float value) {
    change(file, [&](Value& v) {
      TensorRecord tensor = v.at(name).as_tensor();
      std::vector<float> values = floats(*tensor.bytes);
      values.resize(values.size() + 2 * static_cast<size_t>(tensor.numel() / tensor.shape[0]));
      values.back() = value;
      tensor.shape[0] += 2;
      tensor.bytes = bytes_of(values);
      v.set(name, tensor);
    });
  };
  add_rows(table, 0);
  const Outcome padded = diff(tag_of(kMesh), file);
  EXPECT_EQ(padded.code, 0);
  EXPECT_TRUE(padded.says("\nnote: " + table + " fp32: float32 tensor of shape [")) << padded.text;
  EXPECT_TRUE(
      padded.says("in B: equal but for 2 more rows of zeros in B, which pad the vocabulary"));
  EXPECT_TRUE(padded.says(" 0 differences\n"));
  add_rows("6.bias", 0);  // no vocabulary
  expect_problem(diff(file, tag_of(kMesh)),
                 "[64] in B: equal but for 2 more rows of zeros in A\n52 parameters");
  add_rows(table, 1);  // no padding
  expect_problem(diff(tag_of(kMesh), file), " 2 differences");
}

TEST_F(Ckpt, DiffComparesStepsAndMoments) {
  fs::copy(fixture(kMesh) / "universal", folder_, fs::copy_options::recursive);
  const fs::path states = resolve_tag(folder_) / kZeroFolder / "6.bias";
  write_torch_file(states / "step.pt", 11);
  fs::remove(states / "exp_avg.pt");
  const Outcome outcome = diff(folder_, tag_of(kMesh));
  expect_problem(outcome, "\n6.bias step: 11 in A, 10 in B\n");
  expect_problem(outcome, "\n6.bias exp_avg: only in B\n");
  expect_problem(outcome, " 208 tensors compared, 2 differences");
}

TEST_F(Ckpt, DiffIsBoundedUnlessToldOtherwise) {
  const fs::path a = folder_ / "a.bin", b = folder_ / "b.bin";
  Value weights = Value::dict();
  for (int i = 0; i < 50; ++i) weights.set(std::to_string(i), float_tensor({1}, {1}));
  write_torch_file(a, weights);
  write_torch_file(b, Value::dict());
  expect_problem(diff(a, b), "\n... and 10 more (--all)\n50 parameters, 0 tensors compared, 50 ");
  EXPECT_FALSE(diff(a, b, true).says("--all"));
}

TEST_F(Ckpt, DiffTellsNotANumberAndSignsOfZeroApart) {
  const auto compare = [](std::vector<float> a, std::vector<float> b) {
    const auto n = static_cast<int64_t>(a.size());
    return compare_tensors(float_tensor({n}, a), float_tensor({n}, b)).text();
  };
  EXPECT_EQ(compare({1, NAN, 3}, {2, 2, 9}),
            "differs in 3 of 3 elements, at most by nan at element 1");
  EXPECT_EQ(compare({1, 0.0f}, {1, -0.0f}),
            "differs in 1 of 2 elements, at most by 0.000e+00 at element 1");
  EXPECT_EQ(compare_tensors(float_tensor({1}, {NAN}), float_tensor({1}, {NAN})).count, 0);
}

TEST_F(Ckpt, DiffGoesOnWhereATensorCannotBeRead) {
  const fs::path tag = copy_of(kMesh, folder_);
  const std::string file = optim_states_file(0, 1, true);
  change(tag / file, [](Value& v) {
    Value state = v.at(keys::kOptimizerStateDict);
    auto groups = state.at(keys::kFp32Groups).items();
    std::vector<float> values = floats(*groups[1].as_tensor().bytes);
    values[3] += 0.5f;
    groups[1] = float_tensor({static_cast<int64_t>(values.size())}, values);
    v.set(keys::kOptimizerStateDict, state.set(keys::kFp32Groups, Value::list(groups)));
  });
  const Outcome outcome = diff(tag, tag_of(kMesh));
  expect_problem(outcome,
                 "2.input_layernorm.weight: cannot be read: 2.input_layernorm.weight (fp32): "
                 "should be the same on all tp ranks");
  expect_problem(outcome, "1 differences");
}

// ---- verify

// Changes the fp32 masters, moments or step of an optimizer file's group.
void change_optimizer(const fs::path& file, const std::function<void(Value& adam, Value& fp32)>& fn,
                      size_t group) {
  change(file, [&](Value& v) {
    Value state = v.at(keys::kOptimizerStateDict), base = state.at(keys::kBaseOptimizerState);
    auto adam = base.at(keys::kState).entries();
    auto fp32 = state.at(keys::kFp32Groups).items();
    fn(adam[group].second, fp32[group]);
    base.set(keys::kState, Value::dict(adam));
    state.set(keys::kBaseOptimizerState, base).set(keys::kFp32Groups, Value::list(fp32));
    v.set(keys::kOptimizerStateDict, state);
  });
}

// One bit, in the middle of the largest tensor.
void flip_bit(const fs::path& file) {
  const ZipReader zip(file);
  const auto& record =
      *std::max_element(zip.records().begin(), zip.records().end(),
                        [](const auto& a, const auto& b) { return a.size < b.size; });
  std::string bytes = read_file(file);
  bytes.at(record.offset + record.size / 2) ^= 0x10;
  write_file(file, bytes);
}

TEST_F(Ckpt, VerifyFindsAFlippedByte) {
  const fs::path tag = copy_of(kMesh, folder_);
  const fs::path file = tag / optim_states_file(0, 2, true);
  flip_bit(file);
  flip_bit(tag / layer_states_file(3, 1));
  const Outcome outcome = verify(tag);
  expect_problem(outcome, file.string() + ": record ");
  expect_problem(outcome, (tag / layer_states_file(3, 1)).string() + ": record ");
  expect_problem(outcome, "is damaged (its CRC-32 does not match)");
}

TEST_F(Ckpt, VerifyFindsATruncatedFile) {
  const fs::path tag = copy_of("z2-bf16-dp3", folder_);
  const fs::path file = tag / optim_states_file(1, 0, true);
  fs::resize_file(file, fs::file_size(file) - 1000);
  expect_problem(verify(tag), file.string() + ": ");
  fs::resize_file(file, 0);
  expect_problem(verify(tag), file.string() + ": ");
}

TEST_F(Ckpt, VerifyNamesEveryMissingFile) {
  const fs::path tag = copy_of(kMesh, folder_);
  for (const std::string& file : {model_states_file(3), optim_states_file(0, 3, true),
                                  layer_states_file(4, 0), layer_states_file(6, 1)}) {
    fs::remove(tag / file);
    expect_problem(verify(tag), file + ": is missing\n");
  }
  expect_problem(verify(tag), "4 problem(s)");
  expect_problem(verify(tag), "the parameters can only be checked once this is repaired");
}

TEST_F(Ckpt, VerifyMissesLayerFilesOfAPipelineThatHasNone) {
  expect_problem(verify(fixture("z1-bf16-tp1pp1dp2") / "checkpoint"),
                 "layer_02-model_00-model_states.pt: is missing");
}

TEST_F(Ckpt, VerifyMissesARankOfZero3) {
  const fs::path tag = copy_of("z3-fp32-dp3-frozen", folder_);
  fs::remove(tag / zero3_model_states_file(2, 0));
  fs::remove(tag / optim_states_file(1, 0, false));
  expect_problem(verify(tag), zero3_model_states_file(2, 0) + ": is missing\n");
  expect_problem(verify(tag), optim_states_file(1, 0, false) + ": is missing\n");
}

TEST_F(Ckpt, VerifyComparesReplicas) {
  const fs::path tag = copy_of(kMesh, folder_);
  const auto replace = [](Value& value, std::string_view state, size_t at, float by) {
    std::vector<float> values = floats(*value.at(state).as_tensor().bytes);
    values[at] += by;
    value.set(state, float_tensor({static_cast<int64_t>(values.size())}, values));
  };
  change_optimizer(
      tag / optim_states_file(0, 1, true),
      [&](Value& adam, Value&) { replace(adam, kExpAvgState, 3, 0.5f); }, 1);
  // The tied embedding comes first in the weights of both stages.
  change_optimizer(
      tag / optim_states_file(0, 3, true),
      [&](Value& adam, Value&) { replace(adam, kExpAvgSqState, 7, 2.0f); }, 0);
  const Outcome outcome = verify(tag);
  expect_problem(outcome,
                 "2.input_layernorm.weight: exp_avg of pp 0, tp 1 "
                 "(bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt) differs in 1 of 64 elements, at "
                 "most by 5.000e-01 at element 3 from that of pp 0, tp 0\n");
  expect_problem(outcome,
                 "tied_modules.embed.word_embeddings.weight: exp_avg_sq of pp 1, tp 1 "
                 "(bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt) differs in 1 of 16384 elements, "
                 "at most by 2.000e+00 at element 7 from that of pp 0, tp 1\n");
  expect_problem(outcome, "2 problem(s)");
}

// Megatron's last stage has position embeddings that nothing reads.
TEST_F(Ckpt, VerifyOnlyNotesACopyThatWasNeverUsed) {
  const Outcome outcome = verify(tag_of(kMesh));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.says("note: tied_modules.embed.position_embeddings.weight: the copy of pp 1"))
      << outcome.text;
}

TEST_F(Ckpt, VerifyComparesStepsAndCountersOfRanks) {
  const fs::path tag = copy_of("z2-bf16-dp3", folder_);
  const std::string late = optim_states_file(2, 0, true);
  change_optimizer(
      tag / late, [](Value& adam, Value&) { adam.set(kStepState, 5); }, 0);
  expect_problem(verify(tag), late + ": step is 5, but 4 in " + optim_states_file(0, 0, true));
}

TEST_F(Ckpt, VerifyComparesTheIterationOfModelParallelRanks) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / model_states_file(2), [](Value& v) { v.set(keys::kIteration, 9); });
  change_optimizer(
      tag / optim_states_file(0, 2, true), [](Value& adam, Value&) { adam.set(kStepState, 9); }, 1);
  const Outcome outcome = verify(tag);
  expect_problem(
      outcome, model_states_file(2) + ": iteration is 9, but 10 in " + model_states_file(0) + "\n");
  expect_problem(outcome, optim_states_file(0, 2, true) + ": step is 9, but 10 in ");
}

TEST_F(Ckpt, VerifyFindsAPartitionThatIsTooShort) {
  const fs::path tag = copy_of(kMesh, folder_);
  change_optimizer(
      tag / optim_states_file(0, 1, true),
      [](Value&, Value& fp32) {
        fp32 = float_tensor({2}, {1, 2});
      },
      1);
  expect_problem(verify(tag), optim_states_file(0, 1, true));
}

TEST_F(Ckpt, VerifyNamesAllParametersThatDoNotFit) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / model_states_file(0), [](Value& v) {
    Value info = v.at(keys::kUniversalInfo);
    info.set(keys::kPipelineReplicatedPatterns, Value::list());
    v.set(keys::kUniversalInfo, info);
  });
  const Outcome outcome = verify(tag);
  for (const char* name : {"word", "position"}) {
    expect_problem(outcome, std::string("tied_modules.embed.") + name +
                                "_embeddings.weight: pipeline stages 0 and 1 both have it");
  }
}

TEST_F(Ckpt, VerifyChecksUniversalFolders) {
  fs::copy(fixture("z1-bf16-dp2") / "universal", folder_, fs::copy_options::recursive);
  const fs::path zero = resolve_tag(folder_) / kZeroFolder;
  fs::remove_all(zero / "ln_f.bias");
  write_torch_file(zero / "ln_f.weight" / "step.pt", 5);
  fs::remove(zero / "wpe.weight" / "exp_avg_sq.pt");
  flip_bit(zero / "wte.weight" / "fp32.pt");
  const Outcome outcome = verify(folder_);
  expect_problem(outcome, (zero / "ln_f.bias").string() + ": is missing");
  expect_problem(outcome, "ln_f.weight: step is 5, but 4 of ");
  expect_problem(outcome, "wpe.weight: has one of exp_avg and exp_avg_sq, not both");
  expect_problem(outcome, (zero / "wte.weight" / "fp32.pt").string() + ": record ");
  expect_problem(outcome, "4 problem(s)");
}

TEST_F(Ckpt, VerifyChecksAnExport) {
  const fs::path file = exported(kMesh);
  EXPECT_EQ(verify(file).code, 0);
  flip_bit(file);
  expect_problem(verify(file), "is damaged");
}

TEST_F(Ckpt, ReadsSafetensors) {
  write_safetensors(folder_ / "model.safetensors", {{"a.weight", float_tensor({2}, {1, 2})}});
  EXPECT_EQ(verify(folder_).code, 0);
  const Outcome shown = inspect(folder_);
  EXPECT_EQ(shown.code, 0);
  EXPECT_TRUE(shown.says("    a.weight: float32 tensor of shape [2]\n")) << shown.text;
  write_torch_file(folder_ / "w.bin", Value::dict({{"a.weight", float_tensor({2}, {1, 3})}}));
  expect_problem(diff(folder_, folder_ / "w.bin"), "a.weight fp32: differs in 1 of 2 elements");
  fs::resize_file(folder_ / "model.safetensors", fs::file_size(folder_ / "model.safetensors") - 1);
  expect_problem(verify(folder_), "safetensors: found ");
}

// ---- inspect

TEST_F(Ckpt, InspectShowsMeshFilesAndCuts) {
  const Outcome outcome = inspect(fixture(kMesh) / "checkpoint");
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1\n  iteration 10, 80 "
                           "samples consumed, bf16",
                           "  layer_02-model_00-model_states.pt  ",
                           "input_layernorm.weight: bfloat16 tensor of shape [64]",
                           "param_shapes: list of 2", "... and "})
    EXPECT_TRUE(outcome.says(part)) << part << "\n" << outcome.text;
  const auto line_of = [&](const std::string& name) {
    const size_t at = outcome.text.rfind("  " + name + " ");
    return at == std::string::npos ? "" : outcome.text.substr(at, outcome.text.find('\n', at) - at);
  };
  EXPECT_NE(line_of("3.mlp.dense_4h_to_h.weight").find("float32 [64, 256]"), std::string::npos);
  EXPECT_NE(line_of("3.mlp.dense_4h_to_h.weight").find("tp along dim 1; pp 0; step 10"),
            std::string::npos);
  EXPECT_NE(line_of("6.bias").find("replicated; pp 1; step 10"), std::string::npos);
  EXPECT_NE(line_of("tied_modules.embed.word_embeddings.weight")
                .find("tp along dim 0, vocabulary padded to 512; pp 0, 1"),
            std::string::npos)
      << line_of("tied_modules.embed.word_embeddings.weight");
}

TEST_F(Ckpt, InspectShowsAllWhenAsked) {
  const Outcome all = inspect(tag_of("z3-fp32-dp3-frozen"), true);
  EXPECT_FALSE(all.says("--all"));
  EXPECT_TRUE(all.says("fp32_flat_groups"));
  EXPECT_TRUE(inspect(fixture("z3-fp32-dp3-frozen") / "universal").says("universal checkpoint"));
}

TEST_F(Ckpt, InspectShowsWhatItCanOfADamagedCheckpoint) {
  const fs::path tag = copy_of(kMesh, folder_);
  fs::resize_file(tag / model_states_file(1), 100);
  const Outcome outcome = inspect(tag);
  expect_problem(outcome, "  mp_rank_02_model_states.pt  ");
  expect_problem(outcome, "the parameters cannot be listed: ");
}

}  // namespace
}  // namespace anymesh
