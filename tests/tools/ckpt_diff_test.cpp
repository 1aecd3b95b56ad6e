#include <cmath>

#include "framework/format/sharded.h"
#include "framework/format/whole.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

TEST_F(Ckpt, DiffFindsNothingBetweenACheckpointAndItsUniversalFolder) {
  for (const std::string& name : kConverted)
    expect_well(diff(fixture(name) / "checkpoint", fixture(name) / "universal"),
                " tensors compared, 0 differences\n");
}

TEST_F(Ckpt, DiffComparesTheWeightsOfAnExport) {
  const fs::path file = exported(kMesh);
  const Outcome same = diff(tag_of(kMesh), folder_);
  expect_well(same, "52 parameters, 52 tensors compared, 0 differences");
  change(file, [](Value& v) {
    v.erase("6.weight").set("7.weight", float_tensor({1}, {1}));
    v.set("6.bias", float_tensor({1}, {1}));
  });
  change_floats(file, {"2.input_layernorm.weight"},
                [](std::vector<float>& values) { values[3] += 0.5f, values[5] -= 2; });
  const Outcome outcome = diff(tag_of(kMesh), file);
  for (const char* line :
       {"\n2.input_layernorm.weight fp32: differs in 2 of 64 elements, at most by 2.000e+00 at "
        "element 5\n",
        "\n6.bias fp32: float32 tensor of shape [64] in A, float32 tensor of shape [1] in B\n",
        "\n6.weight: only in A\n", "\n7.weight: only in B\n",
        "\n53 parameters, 51 tensors compared, 4 differences\n"})
    expect_problem(outcome, line);
}

// The export of DeepSpeed's script has such rows.
TEST_F(Ckpt, DiffTellsPaddingOfTheVocabularyFromADifference) {
  const std::string table = "tied_modules.embed.word_embeddings.weight";
  const fs::path file = exported(kMesh);
  const auto add_rows = [&](const std::string& name, float value) {
    change(file, {name}, [&](Value& v) {
      TensorRecord tensor = v.as_tensor();
      std::vector<float> values = floats(tensor);
      values.resize(values.size() + 2 * static_cast<size_t>(tensor.numel() / tensor.shape[0]));
      values.back() = value;
      tensor.shape[0] += 2;
      tensor.bytes = bytes_of(values);
      v = tensor;
    });
  };
  add_rows(table, 0);
  const Outcome padded = diff(tag_of(kMesh), file);
  expect_well(padded, "\nnote: " + table + " fp32: float32 tensor of shape [");
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
  change_floats(tag / optim_states_file(0, 1, true),
                {keys::kOptimizerStateDict, keys::kFp32Groups, 1},
                [](std::vector<float>& values) { values[3] += 0.5f; });
  const Outcome outcome = diff(tag, tag_of(kMesh));
  expect_problem(outcome,
                 "2.input_layernorm.weight: cannot be read: 2.input_layernorm.weight (fp32): "
                 "should be the same on all tp ranks");
  expect_problem(outcome, "1 differences");
}

TEST_F(Ckpt, DiffComparesValuesWhereDtypesDiffer) {
  const fs::path masters = rare_case("bf16-masters"), file = folder_ / kWeightsFile;
  export_fp32({.checkpoint = masters, .output = folder_}, {});
  const Outcome same = diff(masters, folder_);
  expect_well(same, "note: 6 tensors are of another dtype in A than in B; their values are ");
  EXPECT_TRUE(same.says("6 parameters, 6 tensors compared, 0 differences\n"));
  change_floats(file, {"a.bias"}, [](std::vector<float>& values) { values[2] += 0.5f; });
  expect_problem(diff(masters, folder_), "a.bias fp32: differs in 1 of ");
}

}  // namespace
}  // namespace anymesh
