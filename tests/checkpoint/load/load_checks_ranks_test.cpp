// A load on another mesh reads no byte twice and checks all it reads: no damaged byte goes unseen.
#include <array>
#include <fstream>
#include <map>
#include <optional>

#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tests/support/checkpoints.h"
#include "tests/support/opens.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using LoadChecks = SharedFolder;

// Returns the bytes that this rank has read from files.
int64_t bytes_read() {
  std::ifstream io("/proc/thread-self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// Returns the bytes of weights and moments in this rank's partition.
int64_t bytes_held(TinyRun& run) {
  int64_t bytes = 0;
  for (const auto& group : run.engine.optimizer().groups()) {
    for (const auto& piece : group.pieces) bytes += 3 * 4 * piece.master.numel();
  }
  return bytes;
}

// Saves a checkpoint and makes it universal.
void save_both(const fs::path& folder, const TinyOptions& options, Topology saved, int stage) {
  TinyRun run(saved, stage, options);
  run.train(2);
  run.engine.save_checkpoint(folder, {.tag = "step2"});
  all_or_none(*test_world(), [&] {
    if (test_world()->rank() == 0)
      convert_to_universal({.input = folder / "step2", .output = folder / "step2_universal"}, {});
  });
}

RANKS_TEST_F(LoadChecks, ARankReadsWhatItHolds) {
  TinyOptions options;
  options.gpt.hidden_size = 384;
  options.gpt.num_layers = 4;
  options.gpt.vocab_size = 1000;
  for (const auto& [saved, stage] :
       {std::pair(kSlices, 1), std::pair(kSlices, 3), std::pair(kPipes, 0)}) {
    save_both(folder_, options, saved, stage);
    for (const bool universal : {false, true}) {
      for (const auto& [mesh, zero] :
           {std::pair(kData, 1), std::pair(kSplit, 0), std::pair(kPipes, 2), std::pair(kSlices, 3),
            std::pair(kData, 3)}) {
        if (!universal && mesh == saved && zero == stage) continue;  // its own files
        TinyRun run(mesh, zero, options);
        const int64_t before = bytes_read();
        run.engine.load_checkpoint(folder_, {.universal = universal});
        const double share =
            static_cast<double>(bytes_read() - before) / static_cast<double>(bytes_held(run));
        SCOPED_TRACE(c10::str("ZeRO ", stage, " to dp ", mesh.dp_size, ", tp ", mesh.tp_size,
                              ", ZeRO ", zero, universal ? ", universal" : ""));
        EXPECT_GE(share, 1);
        EXPECT_LE(share, 1.02);
      }
    }
    clear();
  }
}

// One rank reads the files that hold nothing but metadata, and tells the others what it found.
RANKS_TEST_F(LoadChecks, MetadataIsReadOnce) {
  {
    TinyRun run(kData, 3);
    run.train(1);
    run.engine.save_checkpoint(folder_, {.tag = "step1"});
  }
  for (const bool weights_only : {false, true}) {
    TinyRun run(kSplit, 1);
    const bool first = test_world()->rank() == 0;
    std::optional<Opens> opens;
    if (first) opens.emplace(folder_ / "step1");
    test_world()->barrier();
    run.engine.load_checkpoint(folder_, {.load_module_only = weights_only});
    test_world()->barrier();
    const auto counts = first ? opens->counts() : std::map<std::string, int>();
    for (int dp = 1; first && dp < 4; ++dp)
      EXPECT_EQ(counts.at(zero3_model_states_file(dp, 0)), 1) << dp;
  }
}

// Copies the ZeRO 1 checkpoint `from` of kData, and edits each rank's Adam.
void change_optimizer(const fs::path& from, const fs::path& to, const Edit& edit) {
  all_or_none(*test_world(), [&] {
    if (test_world()->rank() != 0) return;
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive);
    fs::remove(to / kManifestFile);
  });
  all_or_none(*test_world(), [&] {
    change(to / optim_states_file(test_world()->rank(), 0, false),
           {keys::kOptimizerStateDict, keys::kBaseOptimizerState}, edit);
  });
}

// Apex's FusedAdam has the step in param_groups, and elastic checkpoints have a list of states. The
// mesh that saved them loads them as other meshes do, and not as damaged.
RANKS_TEST_F(LoadChecks, OptimizersOfOthersLoadOnTheirOwnMesh) {
  using namespace keys;
  const auto apex = [](Value& adam) {
    edit_at(adam, {kState, kEach}, [](Value& state) { state.erase(kStepState); });
    edit_at(adam, {kParamGroups, kEach}, [](Value& group) { group.set(kStepState, 2); });
  };
  const auto elastic = [](Value& adam) {
    std::vector<Value> states;
    for (const auto& [group, state] : adam.at(kState).entries()) states.push_back(state);
    adam = Value::list(std::move(states));
  };
  TinyRun run(kData, 1);
  run.train(2);
  run.engine.save_checkpoint(folder_, {.tag = "ours"});
  const double next = run.train(1);
  for (const Edit& edit : {Edit(apex), Edit(elastic)}) {
    change_optimizer(folder_ / "ours", folder_ / "theirs", edit);
    TinyRun again(kData, 1);
    again.engine.load_checkpoint(folder_, {.tag = "theirs", .fallback = false});
    EXPECT_EQ(again.train(1), next);
  }
}

// Returns an edit of each of an optimizer's states, or of each of its groups.
Edit in_each(std::string_view key, const Edit& edit) {
  return [=](Value& adam) { edit_at(adam, {key, kEach}, edit); };
}

// States that this Adam lacks are never dropped silently, not even by the mesh that saved them.
// Settings tell other optimizers with the same states apart.
RANKS_TEST_F(LoadChecks, OtherOptimizersAreRefused) {
  using namespace keys;
  TinyRun run(kData, 1);
  run.train(2);
  run.engine.save_checkpoint(folder_, {.tag = "ours"});
  const auto set = [&](const char* key, const Value& value) {
    return in_each(kParamGroups, [=](Value& group) { group.set(key, value); });
  };
  const std::pair<Edit, const char*> kinds[] = {
      {in_each(kState, [](Value& adam) { adam.set("max_exp_avg_sq", adam.at(kExpAvgSqState)); }),
       "has the optimizer state max_exp_avg_sq, which"},
      {in_each(kState, [](Value& adam) { adam = Value::dict(); }),
       "has no state that AdamW could go on with"},
      {in_each(kState, [](Value& adam) { adam.set("qmap", adam.at(kStepState)); }),
       "has the optimizer state qmap, which"},
      {set("optimizer", "SGD"), "is of SGD"},
      {set("amsgrad", true), "Adam with amsgrad"},
      {set("maximize", true), "(maximize)"},
      {set("bias_correction", false), "without bias correction"},
      {set("decoupled_weight_decay", false), "L2 regularization"},
      {set("max_grad_norm", 0.0), "is of LAMB"},
      {in_each(kParamGroups, [](Value& group) { group.erase("amsgrad"); }), "is of RAdam"},
      {in_each(kState,
               [](Value& adam) {
                 const int64_t count = adam.at(kExpAvgState).as_tensor().numel();
                 adam.set(kExpAvgSqState, record_of(torch::zeros({count})));
               }),
       "exp_avg_sq of "}};
  for (const auto& [edit, refusal] : kinds) {
    change_optimizer(folder_ / "ours", folder_ / "theirs", edit);
    for (const Topology& mesh : {kData, kSlices}) {
      TinyRun again(mesh, 1);
      const std::string message = message_of(
          [&] { again.engine.load_checkpoint(folder_, {.tag = "theirs", .fallback = false}); });
      EXPECT_THAT(message, HasSubstrs(refusal, "--no-load-optim"));
      EXPECT_EQ(message_of([&] {
                  again.engine.load_checkpoint(
                      folder_,
                      {.tag = "theirs", .load_optimizer_states = false, .fallback = false});
                }),
                "");
    }
  }
}

// A step that differs is never taken from whichever parameter is read last.
RANKS_TEST_F(LoadChecks, StepsThatDifferAreRefused) {
  save_both(folder_, {}, kData, 1);
  const fs::path universal = folder_ / "step2_universal", zero = universal / "zero";
  all_or_none(*test_world(), [&] {
    if (test_world()->rank() != 0) return;
    fs::remove(universal / kManifestFile);
    const fs::path file = zero / "4.weight" / "step.pt";
    const Value step = read_torch_file(file);
    write_torch_file(file, record_of(torch::full({}, 1.0, torch::kFloat)));
  });
  for (const auto& [mesh, stage] :
       {std::pair(kData, 0), std::pair(kPipes, 1), std::pair(kSlices, 3)}) {
    TinyRun run(mesh, stage);
    EXPECT_REFUSES(run.engine.load_checkpoint(folder_, {.universal = true}), "4.weight", "steps on",
                   "one count for all");
  }
}

// torch's Adam has no state before its first step. The mesh that saved it loads it as others do.
RANKS_TEST_F(LoadChecks, MomentsFromBeforeTheFirstStepAreZero) {
  TinyRun run(kData, 1);
  run.engine.save_checkpoint(folder_, {.tag = "ours"});
  change_optimizer(folder_ / "ours", folder_ / "theirs",
                   [](Value& adam) { adam.set(keys::kState, Value::dict()); });
  const auto start = run.state();
  const double first = run.train(1);
  TinyRun again(kData, 1);
  again.train(1);
  again.engine.load_checkpoint(folder_, {.tag = "theirs", .fallback = false});
  EXPECT_TRUE(same(again.state(), start));
  EXPECT_EQ(again.train(1), first);
}

// Flips the first, the last and a middle byte of every tensor, padding included. The meshes take
// turns at them.
RANKS_TEST_F(LoadChecks, NoFlippedByteGoesUnseen) {
  save_both(folder_, {}, kSlices, 1);
  for (const bool universal : {false, true}) {
    std::vector<fs::path> files;
    const fs::path tag = folder_ / (universal ? "step2_universal" : "step2");
    for (const auto& entry : fs::recursive_directory_iterator(universal ? tag / "zero" : tag)) {
      const std::string name = entry.path().filename();
      if (universal ? entry.is_regular_file() && name != "step.pt" && name != kOptimizerStateFile
                    : name.find("optim_states") != std::string::npos)
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    test_world()->barrier();
    int flips = 0;
    size_t first_turn = 0;
    for (const auto& [mesh, zero] :
         {std::pair(kData, 1), std::pair(kSplit, 0), std::pair(kPipes, 2), std::pair(kSlices, 3)}) {
      TinyRun run(mesh, zero);
      size_t turn = first_turn++;
      for (const fs::path& file : files) {
        const ZipReader zip(file);
        for (const auto& record : zip.records()) {
          if (record.name.find("/data/") == std::string::npos || record.size == 0) continue;
          const uint64_t at = std::array{uint64_t{0}, record.size / 2, record.size - 1}[turn++ % 3];
          on_first_rank([&] { flip(file, record.offset + at); });
          EXPECT_REFUSES(run.engine.load_checkpoint(folder_, {.universal = universal}), file,
                         "is damaged", std::to_string(record.offset))
              << at << " of " << record.name;
          test_world()->barrier();
          on_first_rank([&] { flip(file, record.offset + at); });
          ++flips;
        }
      }
      run.engine.load_checkpoint(folder_, {.universal = universal});
    }
    EXPECT_GT(flips, universal ? 166 : 33);
  }
}

}  // namespace
}  // namespace anymesh
