// Saves that are written while training goes on.
#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/tiny_run.h"
#include "tests/support/tree.h"

namespace anymesh {
namespace {

using AsyncSave = SharedFolder;
using AsyncSaveOfProcesses = SharedFolder;

// Overwrites every weight, master and moment of this rank.
void scramble(const ZeroOptimizer& optimizer, const StageModule& stage) {
  const c10::NoGradGuard no_grad;
  const auto fill = [](const StateTensor& state) {
    if (state.defined()) state.tensor().fill_(-7);
  };
  for (const auto& group : optimizer.groups()) {
    for (const StateTensor& state : {group.weights, group.master, group.states[0], group.states[1]})
      fill(state);
  }
  for (const auto& frozen : optimizer.frozen()) fill(frozen.part);
  for (const ParamSpec& spec : stage.params()) {
    if (spec.tensor.storage().nbytes() > 0) spec.tensor.detach().fill_(-7);  // else it is sharded
  }
}

// Returns a tensor in two places of a dict, as tied weights are.
Value twice(const TensorRecord& record) {
  Value list = Value::list({1});
  list.push_back(record);
  Value dict = Value::dict({{"none", TensorRecord{}}});
  return dict.set("a", record).set("b", Value::tuple({list}));
}

RANKS_TEST(Snapshot, IsWhatWasWhenItWasTaken) {
  Snapshot snapshot;
  for (const int64_t numel : {1000, 10, 100'000}) {  // memory grows, does not, and grows again
    torch::Tensor tensor = torch::arange(numel, torch::kFloat);
    const Value live = twice(record_of(tensor)), before = twice(record_of(tensor.clone()));
    snapshot.reset();
    const Value held = map_tensors(live, [&](TensorRecord record) {
      if (record.bytes) record.bytes = snapshot.hold(record.bytes);
      return record;
    });
    snapshot.take();
    tensor.fill_(-1);
    EXPECT_EQ(held, before);
    EXPECT_FALSE(live == before);
    EXPECT_EQ(held.at("a").as_tensor().bytes, held.at("b").at(0).at(1).as_tensor().bytes);
  }
}

RANKS_TEST_F(AsyncSave, WritesTheSameBytesWhateverChangesMeanwhile) {
  for (const Topology& mesh : {kData, kSplit, kPipes}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
        TinyRun run(mesh, stage, {.dtype = dtype, .freeze = {"^2\\..*bias"}});
        run.train(2);
        torch::Tensor mine = torch::arange(5, torch::kFloat);
        SaveOptions options{.tag = "t", .client_state = Value::dict({{"mine", record_of(mine)}})};
        run.engine.save_checkpoint(folder_ / "sync", options);
        options.async = true;
        EXPECT_EQ(run.engine.save_checkpoint(folder_ / "async", options), folder_ / "async" / "t");
        mine.fill_(-7);
        run.engine.wait_for_snapshot();
        scramble(run.engine.optimizer(), run.engine.module());
        run.engine.state().consumed_train_samples = -7;
        EXPECT_TRUE(run.engine.finish_save());
        EXPECT_FALSE(run.engine.finish_save());
        EXPECT_EQ(run.engine.last_save().path, folder_ / "async" / "t");
        on_first_rank([&] {
          const auto expected = tree(folder_ / "sync" / "t");
          EXPECT_GT(expected.size(), 1u);
          EXPECT_EQ(tree(folder_ / "async" / "t"), expected) << stage;
          EXPECT_EQ(read_text(folder_ / "async" / kLatestFile), "t");
        });
      }
    }
  }
}

// Steps right after the save must not reach it.
RANKS_TEST_F(AsyncSave, StepsGoOnAndLeaveItAlone) {
  for (const int stage : {1, 3}) {
    TinyRun run(kData, stage);
    run.engine.reserve_snapshot();
    run.train(2);
    run.engine.save_checkpoint(folder_, {.async = true});
    int steps = 0;
    for (bool committed = false; !committed; ++steps) {
      ASSERT_LT(steps, 10'000);
      run.train(1);
      committed = run.engine.poll_save();
    }
    EXPECT_EQ(run.engine.save_progress().bytes_total, 0);
    EXPECT_EQ(run.engine.state().iteration, 2 + steps);
    TinyRun same(kData, stage), other(kData, stage);
    same.train(2);
    other.engine.load_checkpoint(folder_);
    EXPECT_EQ(other.engine.state().iteration, 2);
    EXPECT_EQ(other.train(3), same.train(3));
  }
}

RANKS_TEST_F(AsyncSave, OneAtATime) {
  TinyRun run(kPipes, 2);
  run.train(1);
  run.engine.save_checkpoint(folder_, {.async = true});
  EXPECT_FALSE(fs::exists(folder_ / kLatestFile));
  EXPECT_GT(run.engine.save_progress().bytes_total, 0);
  run.train(1);
  run.engine.save_checkpoint(folder_, {.async = true});  // commits the first
  EXPECT_EQ(read_text(folder_ / kLatestFile), "global_step1");
  test_world()->barrier();
  run.engine.load_checkpoint(folder_);  // commits the second
  EXPECT_EQ(run.engine.state().iteration, 2);
  {
    TinyRun gone(kPipes, 2);
    gone.engine.save_checkpoint(folder_, {.tag = "gone", .async = true});
  }
  test_world()->barrier();
  EXPECT_FALSE(fs::exists(folder_ / "gone"));
  EXPECT_EQ(read_text(folder_ / kLatestFile), "global_step2");
}

// All of this rank's bytes are reported, whoever waits for them.
RANKS_TEST_F(AsyncSave, TellsHowFarItIs) {
  for (const bool async : {false, true}) {
    TinyRun run(kData, 1);
    run.train(1);
    Progress last;
    SaveOptions options{.async = async};
    options.progress = [&](const Progress& progress) {
      EXPECT_GE(progress.bytes_done, last.bytes_done);
      last = progress;
    };
    run.engine.save_checkpoint(folder_, options);
    run.engine.finish_save();
    EXPECT_GT(last.bytes_total, 0);
    EXPECT_EQ(last.bytes_done, last.bytes_total);
    torch::Tensor all = torch::full({1}, static_cast<int64_t>(last.bytes_total));
    test_world()->all_reduce(all);
    EXPECT_EQ(all.item<int64_t>(), run.engine.last_save().bytes);
  }
}

RANKS_TEST_F(AsyncSaveOfProcesses, AFullDiskIsAnErrorOnAllRanksAndLeavesTheTagBefore) {
  for (const int stage : {0, 1, 3}) {
    TinyRun run(kData, stage);
    run.train(1);
    run.engine.save_checkpoint(folder_);
    const double expected = run.train(1);
    {
      std::optional<FileSizeLimit> full;
      if (test_world()->rank() == (stage == 0 ? 0 : 2)) full.emplace(4096);
      run.engine.save_checkpoint(folder_, {.async = true});
      run.train(1);
      EXPECT_REFUSES(run.engine.finish_save(), stage == 0 ? "[rank 0]" : "[rank 2]",
                     "File too large");
    }
    test_world()->barrier();  // rank 0 removes the written files
    EXPECT_FALSE(fs::exists(folder_ / "global_step2"));
    EXPECT_FALSE(fs::exists(folder_ / "global_step2.tmp"));
    TinyRun other(kData, stage);
    EXPECT_EQ(other.engine.load_checkpoint(folder_).path, folder_ / "global_step1");
    EXPECT_EQ(other.train(1), expected);
    run.engine.save_checkpoint(folder_, {.async = true});
    EXPECT_TRUE(run.engine.finish_save());
    EXPECT_EQ(read_text(folder_ / kLatestFile), "global_step3");
    clear();
  }
}

RANKS_TEST_F(AsyncSave, RefusesWhatItCannotDo) {
  TinyRun run(kData, 1);
  EXPECT_REFUSES(run.engine.save_checkpoint(folder_, {.async = true, .weights_only = true}),
                 "does not go with weights_only");
  EXPECT_REFUSES(run.engine.save_checkpoint(folder_, {.async = true, .save_16bit_model = true}),
                 "does not go with save_16bit_model");
  EXPECT_FALSE(fs::exists(folder_));
}

RANKS_TEST_F(AsyncSave, ReportsWhereTheTimeGoes) {
  TinyRun run(kSlices, 1);
  run.engine.save_checkpoint(folder_, {.save_16bit_model = true});
  const SaveReport sync = run.engine.last_save();
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(sync.path)) {
    if (entry.path().filename() != kManifestFile) bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(sync.bytes, bytes);
  EXPECT_EQ(sync.times.copy, 0);
  for (const double part : {sync.times.gather, sync.times.serialise, sync.times.write,
                            sync.times.fsync, sync.times.commit, sync.times.stall}) {
    EXPECT_GT(part, 0);
    EXPECT_LE(part, sync.times.total);
  }
  run.engine.save_checkpoint(folder_, {.async = true});
  run.engine.finish_save();
  EXPECT_GT(run.engine.last_save().times.copy, 0);
  EXPECT_EQ(run.engine.last_save().times.gather, 0);
}

}  // namespace
}  // namespace anymesh
