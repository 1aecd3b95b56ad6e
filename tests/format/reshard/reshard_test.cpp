#include "framework/format/reshard/reshard.h"

#include <cmath>
#include <set>

#include "framework/format/checkpoint/model.h"
#include "framework/format/folder/output_lock.h"
#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/whole/convert.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

// Checkpoints of real systems, with their stage, so that "zero=N" leaves the mesh as it is.
const char* const kSources[] = {"z1-fp32-dp2",        "z1-bf16-dp2",
                                "z2-bf16-dp2-frozen", "z2-bf16-dp3",
                                "z2-fp16-dp2",        "z3-bf16-dp2",
                                "z3-fp32-dp3-frozen", "z1-bf16-tp1pp1dp2",
                                "z1-bf16-tp2pp2dp1",  "z1-bf16-tp2pp1dp1-llama",
                                "z0-fp32-tp2dp2",     "z2-bf16-tp2dp2-nopipe",
                                "z3-bf16-dp2-nopipe"};

// Returns the names of the parameters and states that differ between two checkpoints.
std::string differences(const fs::path& a, const fs::path& b) {
  const Checkpoint left = open_checkpoint(a, 2), right = open_checkpoint(b, 2);
  std::string text;
  if (left.names() != right.names()) text += "names ";
  for (const std::string& name : left.names()) {
    const SavedParameter one = left.parameter(name), other = right.parameter(name);
    const bool states = right.states_refused.empty();  // of ZeRO 0, nothing may tell whose they are
    if (states && one.states.size() != other.states.size()) text += name + ": states; ";
    if (states && one.step.is_none() != other.step.is_none()) text += name + ": a step; ";
    if (one.step && other.step && one.step.as_double() != other.step.as_double())
      text += name + ": step; ";
    for (const auto& [state, tensor] : one.states)
      if ((states || state == kFp32State) && compare_tensors(tensor, other.state(state)).count > 0)
        text += name + " " + state + "; ";
  }
  return text;
}

class Reshard : public TempFolder {
 protected:
  fs::path to(const std::string& name) const { return folder_ / name / "global_step1"; }
  ReshardReport run(const fs::path& input, const std::string& name, const std::string& target) {
    return reshard({.input = input, .output = to(name), .target = ReshardTarget::parse(target)},
                   {});
  }
  std::string refusal(const fs::path& input, const std::string& target) {
    const std::string message = message_of([&] { run(input, "refused", target); });
    EXPECT_FALSE(fs::exists(folder_ / "refused")) << message;
    return message;
  }
};

// Expects that two folders have the same torch files, but for what ZeRO 3 leaves undefined: the
// padding of its flat tensors, and Megatron's ranks in `args`.
void expect_same_files(const fs::path& a, const fs::path& b) {
  std::set<std::string> names;
  for (const auto& folder : {a, b})
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".pt") names.insert(entry.path().filename());
  const auto comparable = [](Value file) {
    if (Value args = file.find(keys::kArgs))
      file.set(keys::kArgs, args.set("rank", 0).set("local_rank", 0));
    Value optimizer = file.find(keys::kOptimizerStateDict);
    if (optimizer && optimizer.contains(keys::kFp32FlatGroups))
      file.set(keys::kOptimizerStateDict,
               optimizer.erase(keys::kFp32FlatGroups).erase(keys::kOptimizerStateDict));
    return file;
  };
  for (const std::string& name : names)
    EXPECT_EQ(comparable(read_torch_file(a / name)), comparable(read_torch_file(b / name)))
        << a << " and " << b << ": " << name;
}

// For the mesh that a checkpoint has, we write it as the real system did: every key, every class,
// every number.
TEST_F(Reshard, ToItsOwnMeshIsTheSameCheckpoint) {
  for (const std::string name : kSources) {
    run(tag_of(name), name, "zero=" + name.substr(1, 1));
    expect_same_files(tag_of(name), to(name));
    EXPECT_EQ(differences(tag_of(name), to(name)), "") << name;
  }
}

TEST_F(Reshard, AnyStageAndNumberOfRanksHoldsTheSameState) {
  for (const std::string name : kSources) {
    const bool pipeline = name.find("pp") != name.npos || name == "z0-fp32-tp2dp2";
    for (const std::string target :
         {"dp=1", "dp=3", "dp=5,zero=1", "dp=4,zero=2", "dp=3,zero=3", "dp=2,zero=0,dtype=fp32"}) {
      if (pipeline && (target.ends_with("zero=2") || target.ends_with("zero=3"))) continue;
      run(tag_of(name), name + target, target);
      EXPECT_EQ(differences(tag_of(name), to(name + target)), "") << name << " to " << target;
    }
  }
}

TEST_F(Reshard, ThereAndBackAreTheSameFiles) {
  for (const std::string name : kSources) {
    const std::string stage = "zero=" + name.substr(1, 1);
    const ReshardReport there = run(tag_of(name), name + "-there", stage + ",dp=7");
    run(to(name + "-there"), name, stage + ",dp=" + std::to_string(there.from.dp_size));
    expect_same_files(tag_of(name), to(name));
  }
}

TEST_F(Reshard, MegatronsMeshesToAnyOther) {
  for (const std::string name : {"z0-fp32-tp2dp2", "z1-bf16-tp1pp1dp2", "z1-bf16-tp2pp2dp1",
                                 "z1-bf16-tp2pp1dp1-llama", "z2-bf16-tp2dp2-nopipe"}) {
    const bool pipeline = !name.ends_with("nopipe");
    for (const std::string mesh : {"tp=1,pp=1,dp=3", "tp=2,pp=4,dp=1", "tp=4,pp=1,dp=2"}) {
      if (!pipeline && mesh.find("pp=4") != std::string::npos) continue;
      run(tag_of(name), name + mesh, mesh);
      EXPECT_EQ(differences(tag_of(name), to(name + mesh)), "") << name << " to " << mesh;
    }
  }
}

// DeepSpeed cannot load what BF16_Optimizer saves at ZeRO 0. Its masters and states go on at ZeRO
// 1.
TEST_F(Reshard, Bf16OptimizerOfZeRO0GoesOnAtZeRO1) {
  for (const std::string name :
       {"pipeline-bf16-z0", "pipeline-bf16-z0-dp3", "pipeline-bf16-z0-tp2"}) {
    for (const std::string target :
         {"zero=1", "zero=1,dp=5", "dtype=fp32,zero=1", "dtype=fp16,zero=1"}) {
      const ReshardReport report = run(tag_of(name), name + target, target);
      EXPECT_GT(report.parameters, 0) << name << " to " << target;
      EXPECT_EQ(differences(tag_of(name), to(name + target)), "") << name << " to " << target;
    }
    EXPECT_THAT(refusal(tag_of(name), "dp=2"),
                HasSubstr("cannot load the BF16_Optimizer that it saves at ZeRO 0"));
  }
}

// Ulysses, no checksums, no dp_world_size, NAdam's and Adafactor's single numbers.
TEST_F(Reshard, JobsOfOtherKinds) {
  for (const std::string name : {"ulysses-z2", "ulysses-v0.18-z2", "crc32-off-z2",
                                 "dpworld-missing-z2", "nadam-z3", "adafactor-z2"}) {
    const fs::path source = fixture("jobs/" + name) / "checkpoint", universal = folder_ / name;
    convert_to_universal({.input = source, .output = universal}, {});
    for (const std::string target : {"dp=3", "dp=2,zero=1", "dp=2,zero=3"}) {
      run(source, name + target, target);
      EXPECT_EQ(differences(source, to(name + target)), "") << name << " to " << target;
      run(universal, name + "u" + target, target);
      EXPECT_EQ(differences(source, to(name + "u" + target)), "") << name << " to " << target;
    }
  }
}

// Returns the base optimizer's state dict of a rank of `folder`.
Value torch_of(const fs::path& folder, int stage, bool bf16 = false, int dp = 0) {
  if (stage == 0) return read_torch_file(folder / model_states_file(0)).at(keys::kOptimizer);
  const Value state =
      read_torch_file(folder / optim_states_file(dp, 0, bf16)).at(keys::kOptimizerStateDict);
  return state.at(stage == 3 ? keys::kOptimizerStateDict : keys::kBaseOptimizerState);
}

TEST_F(Reshard, SingleNumbersStayAtEveryStage) {
  const fs::path source = fixture("jobs/nadam-z3") / "checkpoint", universal = folder_ / "u";
  convert_to_universal({.input = source, .output = universal}, {});
  const double kept =
      torch_of(resolve_tag(source), 3).at(keys::kState).find(0).at("mu_product").as_double();
  for (const fs::path& from : {source, universal}) {
    for (const int stage : {0, 1, 2, 3}) {
      const std::string name = from.filename().string() + std::to_string(stage);
      run(from, name, "dp=3,zero=" + std::to_string(stage));
      std::vector<Value> states = {torch_of(to(name), stage)};
      if (stage > 0) {  // nothing tells whose ZeRO 0's states are
        run(to(name), name + "-back", "dp=2,zero=3");
        states.push_back(torch_of(to(name + "-back"), 3));
      }
      for (const Value& torch : states)
        for (const auto& [group, state] : torch.at(keys::kState).entries())
          EXPECT_EQ(state.at("mu_product").as_double(), kept) << name;
    }
  }
}

// A job dies at its first step without the hyperparameters that an elastic checkpoint lacks.
TEST_F(Reshard, NamesAWayOutForElasticCheckpoints) {
  for (const std::string name : {"elastic-z1", "v0.4.5-z2"}) {
    const fs::path source = fixture("jobs/" + name) / "checkpoint", universal = folder_ / name;
    convert_to_universal({.input = source, .output = universal}, {});
    for (const fs::path& from : {source, universal})
      for (const std::string target : {"dp=3", "dp=2,zero=3", "dp=2,zero=0"})
        EXPECT_THAT(refusal(from, target), HasSubstr("{\"load_universal\": true}"));
  }
}

// A run under another tag of the folder would write `latest` at the same time.
TEST_F(Reshard, RefusesASecondWriterOfTheFolderBeforeItPublishes) {
  fs::create_directory(folder_ / "shared");
  {
    const OutputLock other = OutputLock::inside(folder_ / "shared", "--output_folder");
    EXPECT_REFUSES(run(tag_of("z1-fp32-dp2"), "shared", "dp=3"), "is being written by");
    EXPECT_FALSE(fs::exists(to("shared")));
    EXPECT_FALSE(fs::exists(folder_ / "shared" / kLatestFile));
  }
  run(tag_of("z1-fp32-dp2"), "shared", "dp=3");
  EXPECT_EQ(read_text(folder_ / "shared" / kLatestFile), "global_step1");
}

// As load_checkpoint() takes it; what belongs beside the tag goes along.
TEST_F(Reshard, TakesTheFolderAboveATag) {
  const fs::path above = folder_ / "checkpoint-4";
  copy_of("z1-fp32-dp2", above, "global_step4");
  write_file(above / "zero_to_fp32.py", "script");
  EXPECT_THAT(run(above, "only", "dp=3").notes,
              ElementsAre(HasSubstr("the only tag there is used, global_step4")));
  write_file(above / kLatestFile, "global_step4");
  EXPECT_TRUE(run(above, "latest", "dp=3").notes.empty());
  EXPECT_EQ(read_text(folder_ / "latest" / "zero_to_fp32.py"), "script");
}

TEST_F(Reshard, NotesTheOrderThatATpOfMegatronAssumes) {
  const auto notes = [&](const std::string& target) {
    return testing::PrintToString(run(tag_of("z1-bf16-tp2pp2dp1"), target, target).notes);
  };
  EXPECT_THAT(notes("tp=1"), HasSubstr("query_key_value is cut as Megatron orders it"));
  EXPECT_THAT(notes("pp=1"), Not(HasSubstr("query_key_value")));
}

TEST_F(Reshard, NotesPaddingOfTheVocabularyThatIsLost) {
  const fs::path tag = copy_of("z1-bf16-tp1pp1dp2", folder_ / "padded", "global_step1");
  change(tag / model_states_file(0), {keys::kUniversalInfo},
         [](Value& info) { info.set(keys::kOriginalVocabSize, 500); });
  EXPECT_THAT(testing::PrintToString(run(tag, "pp", "pp=2").notes),
              HasSubstr("rows 500 to 512 of the vocabulary are padding"));
  EXPECT_THAT(testing::PrintToString(run(tag, "dp", "dp=1").notes), Not(HasSubstr("padding")));
}

// Names and keys of layer files are those of the model's code, which ds_reshard does not know.
TEST_F(Reshard, AnyPipelineInAnotherPrecision) {
  for (const std::string name : {"pipeline-tied", "pipeline-frozen"}) {
    const fs::path tag =
        resolve_tag(fs::path(ANYMESH_TEST_DATA) / "deepspeed/cases" / name / "checkpoint");
    run(tag, name, "dtype=fp32");
    EXPECT_EQ(differences(tag, to(name)), "") << name;
    for (const auto& file : fs::directory_iterator(tag)) {
      if (!file.path().filename().string().starts_with("layer_")) continue;
      const auto before = read_torch_file(file.path()).entries(),
                 after = read_torch_file(to(name) / file.path().filename()).entries();
      ASSERT_EQ(before.size(), after.size()) << file.path();
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(before[i].first, after[i].first) << file.path();
        const DType old = before[i].second.as_tensor().dtype;
        EXPECT_EQ(after[i].second.as_tensor().dtype,
                  old == DType::kBFloat16 ? DType::kFloat32 : old)
            << file.path();
      }
    }
  }
}

// From a universal folder to ordinary files: those of the source's own mesh, but for the weights,
// which are rounded anew, and what only the source's ranks knew.
TEST_F(Reshard, AUniversalFolderBecomesOrdinary) {
  for (const std::string name : {"z1-bf16-tp2pp2dp1", "z2-fp16-dp2", "z3-bf16-dp2"}) {
    const fs::path universal = folder_ / (name + "_universal");
    convert_to_universal({.input = tag_of(name), .output = universal, .inject_missing_info = true},
                         {});
    const ReshardReport report = run(universal, name, "dp=3");
    EXPECT_EQ(report.to.dp_size, 3);
    EXPECT_EQ(differences(tag_of(name), to(name)), "") << name;
  }
}

// The order that round_robin_gradients deals depends on dp: from a universal folder it is found
// again, as from the files themselves.
TEST_F(Reshard, DealsOutAnew) {
  const fs::path source = copy_of("z2-bf16-dp3", folder_ / "source", "global_step4"),
                 universal = folder_ / "universal";
  for (const auto& entry : fs::directory_iterator(source)) {
    change(entry.path(), {keys::kDsConfig, keys::kZeroOptimization},
           [](Value& zero) { zero.set(keys::kRoundRobinGradients, true); });
  }
  run(source, "dealt", "dp=2");
  EXPECT_EQ(differences(source, to("dealt")), "");
  convert_to_universal({.input = to("dealt"), .output = universal, .inject_missing_info = true},
                       {});
  for (const fs::path& from : {to("dealt"), universal}) {
    run(from, "again", "dp=3");
    expect_same_files(source, to("again"));
  }
}

TEST_F(Reshard, RefusesWhatCannotBe) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"z1-bf16-dp2", "zero=0", "give zero=1"},
      {"z1-bf16-tp2pp2dp1", "zero=2", "pipelines train with ZeRO 0 and 1 alone; give zero=1"},
      {"z1-fp32-dp2", "tp=2", "leave tp and pp out"},
      {"z1-bf16-tp2pp2dp1", "tp=3", "tp=3 cannot cut "},
      {"z1-bf16-tp2pp2dp1", "pp=5", "pp=5 stages have only 4 layers"},
      {"z2-bf16-tp2dp2-nopipe", "pp=2", "leave pp out"},
      {"z1-fp32-dp2", "ep=2", "the model has no experts; leave ep out"},
      {"z1-bf16-tp2pp2dp1", "dp=16000", "are 64000 ranks, expected at most 16384"}};
  for (const auto& [source, target, expected] : cases)
    EXPECT_THAT(refusal(tag_of(source), target), HasSubstr(expected));
  for (const auto& [target, expected] : {std::pair{"dp", "a number from 1"},
                                         {"dp=0", "a number from 1"},
                                         {"dp=2,dp=3", "each key once"},
                                         {"zero=4", "a number from 0 to 3"},
                                         {"dtype=int8", "dtype=bf16, fp16 or fp32"},
                                         {"cp=2", "expected dp="},
                                         {"ep=0", "a number from 1"},
                                         {"dp=2x", "a number from 1"}})
    EXPECT_THAT(message_of([t = target] { ReshardTarget::parse(t); }), HasSubstr(expected))
        << target;
}

TEST_F(Reshard, TouchesNothingOfOthers) {
  const fs::path source = tag_of("z1-fp32-dp2");
  fs::create_directories(to("a"));
  write_file(to("a") / "notes.txt", "mine");
  EXPECT_REFUSES(run(source, "a", "dp=3"), "notes.txt");
  EXPECT_EQ(read_text(to("a") / "notes.txt"), "mine");
  fs::create_directories(folder_ / "b");
  write_file(folder_ / "b" / "latest", "theirs");
  EXPECT_REFUSES(run(source, "b", "dp=3"), "latest");
  EXPECT_EQ(read_text(folder_ / "b" / "latest"), "theirs");
  EXPECT_FALSE(fs::exists(to("b")));
  run(source, "c", "dp=3");
  run(source, "c", "dp=2");  // replaces its own
  EXPECT_EQ(read_text(folder_ / "c" / "latest"), "global_step1");
  EXPECT_EQ(open_checkpoint(to("c"), 1).description,
            "ordinary checkpoint of ZeRO 1, tp 1, pp 1, dp 2");
}

TEST_F(Reshard, DryRunWritesNothing) {
  const ReshardReport report = reshard({.input = tag_of("z1-fp32-dp2"),
                                        .output = to("dry"),
                                        .target = ReshardTarget::parse("dp=3"),
                                        .dry_run = true},
                                       {});
  EXPECT_EQ(report.files, 4);
  EXPECT_GT(report.bytes, 0u);
  EXPECT_FALSE(fs::exists(folder_ / "dry"));
}

// A killed run left files: only missing and differing bytes are written.
TEST_F(Reshard, GoesOnWhereItWasKilled) {
  const fs::path source = tag_of("z2-bf16-dp3");
  run(source, "whole", "dp=2");
  run(source, "killed", "dp=2");
  const fs::path left = to("killed").string() + ".tmp";
  fs::rename(to("killed"), left);
  fs::remove(left / optim_states_file(1, 0, true));
  fs::resize_file(left / model_states_file(0), 1000);
  const ReshardReport report = run(source, "killed", "dp=2");
  EXPECT_GT(report.kept, fs::file_size(to("whole") / optim_states_file(0, 0, true)) / 2);
  EXPECT_LT(report.kept, report.bytes);
  EXPECT_FALSE(fs::exists(left));
  for (const auto& entry : fs::directory_iterator(to("whole"))) {
    const fs::path name = entry.path().filename();
    if (name == kManifestFile) continue;
    EXPECT_EQ(read_text(entry.path(), 1 << 30), read_text(to("killed") / name, 1 << 30)) << name;
  }
}

TEST_F(Reshard, ADamagedByteIsAnError) {
  const fs::path source = copy_of("z1-fp32-dp2", folder_ / "source", "global_step4");
  const fs::path file = source / optim_states_file(1, 0, false);
  const Value state = read_torch_file(file).at(keys::kOptimizerStateDict);
  const TensorRecord master = state.at(keys::kFp32Groups).at(0).as_tensor();
  const FileRange place = master.bytes->places(0, 4).at(0);
  std::string bytes = read_text(file, 1 << 30);
  bytes.at(place.offset) ^= 1;
  write_file(file, bytes);
  const std::string message = message_of([&] { run(source, "damaged", "dp=3"); });
  EXPECT_THAT(message, HasSubstr(file.filename().string()));
  EXPECT_FALSE(fs::exists(to("damaged"))) << message;
  EXPECT_FALSE(fs::exists(folder_ / "damaged" / kLatestFile));
}

// HF Trainer's own files go along; a rank's random numbers go by its new name.
TEST_F(Reshard, CarriesWhatIsBeside) {
  const fs::path source = copy_of("z1-fp32-dp2", folder_ / "checkpoint-4", "global_step4");
  for (const char* name : {"trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"})
    write_file(source.parent_path() / name, name);
  write_file(folder_ / "thesis", "thesis");
  for (const char* name : {"scheduler.pt", "rng_state_2.pth"})
    fs::create_symlink(folder_ / "thesis", source.parent_path() / name);
  const ReshardReport one = run(source, "one", "dp=1"), three = run(source, "three", "dp=3");
  EXPECT_EQ(read_text(folder_ / "one" / "rng_state.pth"), "rng_state_0.pth");
  EXPECT_EQ(read_text(folder_ / "three" / "rng_state_1.pth"), "rng_state_1.pth");
  EXPECT_EQ(one.beside,
            (std::vector<std::string>{"trainer_state.json", "rng_state.pth", "latest"}));
  EXPECT_THAT(three.notes, ElementsAre("scheduler.pt: is a link, and is not copied",
                                       HasSubstr("rng_state_2.pth: no rank of the source")));
  write_file(folder_ / "three" / "rng_state_2.pth.0123abcd.tmp", "half");  // a killed run's
  write_file(folder_ / "three" / "rng_state_1.pth.0123abcd.tmp", "half");
  run(source, "three", "dp=1");
  EXPECT_TRUE(fs::exists(folder_ / "three" / "rng_state_2.pth.0123abcd.tmp")) << "no file of ours";
  EXPECT_FALSE(fs::exists(folder_ / "three" / "rng_state_1.pth.0123abcd.tmp"));
}

// Every number of either kind is its own rounding. elements_test.cpp has those between them.
TEST(Rounded, KeepsWhatFits) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const TensorRecord tensor{dtype, {1 << 16}, false, bytes_of(all)};
    const auto back = read_bytes(rounded(as_float32(tensor), dtype));
    const auto floats = anymesh::floats(as_float32(tensor));
    for (size_t i = 0; i < all.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, &back[2 * i], 2);
      ASSERT_TRUE(std::isnan(floats[i]) || bits == all[i]) << dtype_name(dtype) << " " << all[i];
    }
  }
}

}  // namespace
}  // namespace anymesh
