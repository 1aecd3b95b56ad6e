#include <algorithm>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

TEST_F(Ckpt, VerifyFindsNoProblemInRealCheckpoints) {
  for (const char* name : {"z0-fp32-dp2", "z1-bf16-dp2", "z2-bf16-dp3", "z2-bf16-dp2-frozen",
                           "z3-fp32-dp3-frozen", "z1-bf16-tp2pp2dp1"})
    expect_well(verify(fixture(name) / "checkpoint"), "no problem");
  for (const std::string& name : kConverted)
    expect_well(verify(fixture(name) / "universal"), "no problem");
}

// Returns the path of the states of an optimizer file's group.
std::vector<PathStep> states_of(int group) {
  std::vector<PathStep> path = kEachState;
  path.back() = group;
  return path;
}

// Flips one bit, in the middle of the largest tensor.
void flip_bit(const fs::path& file) {
  const ZipReader zip(file);
  const auto& record =
      *std::max_element(zip.records().begin(), zip.records().end(),
                        [](const auto& a, const auto& b) { return a.size < b.size; });
  std::string bytes = read_file(file);
  bytes.at(record.offset + record.size / 2) ^= 0x10;
  write_file(file, bytes);
}

// A manifest that is cut short says nothing about the files it leaves out.
TEST_F(Ckpt, VerifyWantsEveryFileInTheManifest) {
  const fs::path tag = copy_of(kMesh, folder_);
  Manifest manifest{.tag = tag.filename(), .iteration = 4};
  const auto verified = [&] {
    write_file(tag / kManifestFile, manifest.to_json());
    return verify(tag);
  };
  expect_problem(verified(), "manifest.json: lists no files");
  for (const auto& entry : fs::directory_iterator(tag)) {
    const std::string bytes = read_file(entry.path());
    if (entry.path().filename() != kManifestFile)
      manifest.files.push_back(
          {entry.path().filename(), bytes.size(), crc32(std::as_bytes(std::span(bytes))), "here"});
  }
  EXPECT_EQ(verified().code, 0);
  const std::string left_out = tag / manifest.files.back().name;
  manifest.files.pop_back();
  expect_problem(verified(), left_out + ": is not in manifest.json");
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
  const auto add = [&](int mp, int group, std::string_view state, size_t at, float value) {
    std::vector<PathStep> path = states_of(group);
    path.push_back(state);
    change_floats(tag / optim_states_file(0, mp, true), path,
                  [&](std::vector<float>& values) { values[at] += value; });
  };
  add(1, 1, kExpAvgState, 3, 0.5f);
  add(3, 0, kExpAvgSqState, 7, 2.0f);  // the tied embedding is first on both stages
  const Outcome outcome = verify(tag);
  expect_problem(outcome,
                 "2.input_layernorm.weight: exp_avg of pp 0, tp 1 "
                 "(bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt) differs in 1 of 64 elements, at "
                 "most by 5.000e-01 at element 3 from the one of pp 0, tp 0\n");
  expect_problem(outcome,
                 "tied_modules.embed.word_embeddings.weight: exp_avg_sq of pp 1, tp 1 "
                 "(bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt) differs in 1 of 16384 elements, "
                 "at most by 2.000e+00 at element 7 from the one of pp 0, tp 1\n");
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
  change(tag / late, states_of(0), [](Value& adam) { adam.set(kStepState, 5); });
  expect_problem(verify(tag), late + ": step is 5, but 4 in " + optim_states_file(0, 0, true));
}

TEST_F(Ckpt, VerifyComparesTheIterationOfModelParallelRanks) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / model_states_file(2), [](Value& v) { v.set(keys::kIteration, 9); });
  change(tag / optim_states_file(0, 2, true), states_of(1),
         [](Value& adam) { adam.set(kStepState, 9); });
  const Outcome outcome = verify(tag);
  expect_problem(
      outcome, model_states_file(2) + ": iteration is 9, but 10 in " + model_states_file(0) + "\n");
  expect_problem(outcome, optim_states_file(0, 2, true) + ": step is 9, but 10 in ");
}

TEST_F(Ckpt, VerifyRefusesAMeshThatCannotBe) {
  const fs::path tag = copy_of(kMesh, folder_);
  for (const int64_t tp : {int64_t{0}, int64_t{3}, INT64_MAX}) {
    change(tag / model_states_file(0), {keys::kParallelDimensions},
           [tp](Value& degrees) { degrees.set(keys::kTpDegree, tp); });
    expect_problem(verify(tag), model_states_file(0) + ": a mesh of dp 1 and 4 model-parallel " +
                                    "ranks, tp " + std::to_string(tp) + "\n");
  }
}

TEST_F(Ckpt, VerifyNamesAllParametersThatDoNotFit) {
  const fs::path tag = copy_of(kMesh, folder_);
  change(tag / model_states_file(0), {keys::kUniversalInfo},
         [](Value& info) { info.set(keys::kPipelineReplicatedPatterns, Value::list()); });
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
  expect_problem(outcome, "wpe.weight: lacks exp_avg_sq.pt, which ");
  expect_problem(outcome, (zero / "wte.weight" / "fp32.pt").string() + ": record ");
  expect_problem(outcome, "4 problem(s)");
}

TEST_F(Ckpt, VerifyChecksAnExport) {
  const fs::path file = exported(kMesh);
  EXPECT_EQ(verify(file).code, 0);
  flip_bit(file);
  expect_problem(verify(file), "is damaged");
}

void expect_not_understood(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, kExitNotUnderstood);
  EXPECT_TRUE(outcome.says(part)) << outcome.text;
}

TEST_F(Ckpt, WhatIsNotUnderstoodIsNotDamage) {
  const fs::path tag = copy_of(kMesh, folder_);
  const auto legacy = [&] {
    write_file(tag / model_states_file(1),
               std::string("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.", 15));
  };
  change(tag / model_states_file(0), [](Value& v) { v.erase(keys::kUniversalInfo); });
  expect_not_understood(verify(tag), "nothing says how the shards of tp 2 are merged");
  legacy();
  expect_not_understood(verify(tag), "legacy format of torch.save");
  fs::resize_file(tag / optim_states_file(0, 2, true), 1000);  // a truncated file is damage
  expect_problem(verify(tag), optim_states_file(0, 2, true));
  expect_problem(verify(tag), "the rest is not checked");
}

TEST_F(Ckpt, LeftOverFilesAreNamed) {
  const std::string left = "remove them:\n  bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt\n";
  expect_problem(verify(rare_case("stale-rank")), left);
  const fs::path copy = folder_ / "copy";
  fs::copy(rare_case("stale-rank") / "global_step3", copy);
  expect_problem(verify(copy), "has files of 3 ranks, but ");
  fs::remove(copy / optim_states_file(2, 0, true));
  EXPECT_EQ(verify(copy).code, kExitAllWell) << verify(copy).text;
  const fs::path tag = copy_of(kMesh, folder_);
  for (const int mp : {4, 5})
    fs::copy(tag / model_states_file(mp - 2), tag / model_states_file(mp));
  expect_problem(verify(tag), "['checkpoint_parallel_dimensions'] says 4: these are left over");
  expect_problem(verify(tag), "\n  mp_rank_04_model_states.pt\n  mp_rank_05_model_states.pt\n");
}

}  // namespace
}  // namespace anymesh
