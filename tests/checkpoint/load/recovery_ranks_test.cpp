// Damaged checkpoints: every file of a tag in turn, the pointer file, nodes without a shared file
// system, and saves that fail.
#include <fstream>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/whole.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using Recovery = SharedFolder;
using RecoveryOfProcesses = SharedFolder;

bool is_first() { return test_world()->rank() == 0; }

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Damages each file of the newest tag in each way. The tag before it is loaded, bit for bit, and
// the report names the file. A flipped byte may be one without meaning; then the newest tag loads
// unchanged.
RANKS_TEST_F(Recovery, EveryFileDamagedInTurn) {
  const fs::path newest = folder_ / "global_step2", whole = folder_ / "whole";
  for (const auto& [mesh, stage] :
       {std::pair(kPipes, 1), std::pair(kSlices, 0), std::pair(kData, 3)}) {
    TinyRun run(mesh, stage, {.dtype = stage == 1 ? torch::kBFloat16 : torch::kFloat});
    std::vector<std::vector<torch::Tensor>> states;
    for (int step = 1; step <= 2; ++step) {
      run.train(1);
      run.engine.save_checkpoint(folder_);
      states.push_back(run.state());
    }
    on_first_rank([&] { fs::copy(newest, whole); });
    // Loads after `damage` to a file. Returns whether the newest tag was taken.
    const auto load_after = [&](const std::string& name, bool verify, const auto& damage) {
      on_first_rank([&] { damage(newest / name); });
      const LoadResult loaded = run.engine.load_checkpoint(folder_, {.verify = verify});
      test_world()->barrier();
      on_first_rank([&] {
        fs::copy_file(whole / name, newest / name, fs::copy_options::overwrite_existing);
      });
      const bool newest_taken = loaded.path == newest;
      EXPECT_TRUE(same(run.state(), states[newest_taken ? 1 : 0])) << name;
      EXPECT_EQ(newest_taken, joined(loaded.report).find("FALLING BACK") == std::string::npos);
      if (!newest_taken) {
        EXPECT_THAT(joined(loaded.report),
                    HasSubstrs("global_step2 is damaged", name,
                               name == kManifestFile ? "" : "(written on " + host_name() + ")"));
      }
      return newest_taken;
    };
    for (const std::string& name : files_in(whole)) {
      const uint64_t size = fs::file_size(whole / name);
      if (name != kManifestFile) {  // without it the tag is like DeepSpeed's
        EXPECT_FALSE(load_after(name, false, [](const fs::path& file) { fs::remove(file); }))
            << name;
      }
      EXPECT_FALSE(load_after(name, false, [](const fs::path& file) { fs::resize_file(file, 0); }));
      EXPECT_FALSE(
          load_after(name, false, [&](const fs::path& file) { fs::resize_file(file, size - 2); }));
      for (const uint64_t at : {uint64_t{0}, size / 3, size / 2, size - 30}) {
        load_after(name, false, [&](const fs::path& file) { flip(file, at); });
        EXPECT_FALSE(load_after(name, true, [&](const fs::path& file) { flip(file, at); }) &&
                     name != kManifestFile)
            << name << " " << at;
      }
    }
    clear();
  }
}

RANKS_TEST_F(Recovery, ALostPointerFindsTheNewestCommitted) {
  TinyRun run(kPipes, 1);
  run.train_and_save(3, folder_);
  const fs::path pointer = folder_ / kLatestFile;
  const auto load_with = [&](const std::function<void()>& damage, LoadOptions options = {}) {
    on_first_rank(damage);
    return run.engine.load_checkpoint(folder_, options);
  };
  const auto expect_third = [&](const LoadResult& loaded, const char* why) {
    EXPECT_EQ(loaded.path, folder_ / "global_step3");
    if (is_first()) {
      EXPECT_THAT(joined(loaded.report), HasSubstrs(why, "newest checkpoint that was committed"));
    }
  };
  expect_third(load_with([&] { fs::remove(pointer); }), "is missing");
  EXPECT_REFUSES(load_with([] {}, {.fallback = false}), "latest is missing", "--no-fallback");
  expect_third(load_with([&] { std::ofstream(pointer).flush(); }), "names ''");
  expect_third(load_with([&] { std::ofstream(pointer) << "global_stepX"; }),
               "names 'global_stepX'");
  expect_third(load_with([&] { std::ofstream(pointer) << ".."; }),
               "names '..', which is not a folder below");
  EXPECT_REFUSES(load_with([] {}, {.tag = "../" + folder_.filename().string()}),
                 "which is not a folder below");
  const fs::path nested = folder_ / "epoch=1.ckpt" / "checkpoint";
  EXPECT_EQ(load_with([&] {
              fs::create_directory(nested.parent_path());
              fs::copy(folder_ / "global_step1", nested);
              std::ofstream(pointer) << "epoch=1.ckpt/checkpoint";
            }).path,
            nested);
  expect_third(load_with([&] { std::ofstream(pointer) << "global_stepX"; }), "global_stepX");
  EXPECT_REFUSES(load_with([] {}, {.fallback = false}), "names 'global_stepX'");

  // A tag without a manifest was not committed by a save of ours.
  const LoadResult second = load_with([&] {
    fs::remove(pointer);
    fs::remove(folder_ / "global_step3" / kManifestFile);
  });
  EXPECT_EQ(second.path, folder_ / "global_step2");
  const LoadResult third = load_with([] {}, {.tag = "global_step3", .verify = true});
  if (is_first()) {
    EXPECT_THAT(joined(third.report), HasSubstr("to verify it by"));
  }
}

// A universal load that has to convert first takes the newest good checkpoint.
RANKS_TEST_F(Recovery, ConvertsTheNewestThatIsGood) {
  TinyRun run(kPipes, 1);
  run.train_and_save(2, folder_);
  on_first_rank([&] {
    const fs::path optimizer = folder_ / "global_step2" / optim_states_file(0, 0, false);
    flip(optimizer, fs::file_size(optimizer) / 2);
  });
  EXPECT_REFUSES(run.engine.load_checkpoint(folder_, {.universal = true, .fallback = false}),
                 "is damaged");
  const LoadResult loaded = run.engine.load_checkpoint(folder_, {.universal = true});
  EXPECT_EQ(loaded.path, folder_ / "global_step1_universal");
  EXPECT_EQ(run.engine.state().iteration, 1);
  on_first_rank([&] {
    EXPECT_THAT(joined(loaded.report),
                HasSubstrs("global_step2 is damaged", "FALLING BACK", "converted global_step1"));
    fs::remove(folder_ / kLatestFile);
    fs::create_directory(folder_ / kLatestFile);
  });
  EXPECT_EQ(run.engine.load_checkpoint(folder_, {.universal = true}).path, loaded.path);
}

RANKS_TEST_F(Recovery, FallsBackOnlyWhereItMay) {
  TinyRun run(kSplit, 1);
  run.train_and_save(2, folder_);
  const std::string name = model_states_file(3);
  on_first_rank([&] { fs::resize_file(folder_ / "global_step2" / name, 100); });
  for (const LoadOptions& options :
       {LoadOptions{.fallback = false}, LoadOptions{.tag = "global_step2"}})
    EXPECT_REFUSES(run.engine.load_checkpoint(folder_, options), name, "has 100 bytes",
                   "No checkpoint was loaded");
  EXPECT_EQ(run.engine.load_checkpoint(folder_).path, folder_ / "global_step1");
  on_first_rank([&] { fs::remove(folder_ / "global_step1" / name); });
  EXPECT_REFUSES(run.engine.load_checkpoint(folder_), "global_step2 is damaged", "global_step1",
                 "is missing", "no other checkpoint to fall back to");

  // Another model's checkpoint is not damage. It is refused at once, whatever else is there.
  GptConfig wide = tiny();
  wide.hidden_size = 32;
  TinyRun other(kSplit, 1, {.gpt = wide});
  other.train(1);
  other.engine.save_checkpoint(folder_, {.tag = "global_step1", .save_latest = false});
  other.engine.save_checkpoint(folder_, {.tag = "global_step2"});
  EXPECT_THAT(message_of([&] { run.engine.load_checkpoint(folder_); }),
              AllOf(HasSubstr("32"), Not(HasSubstr("damaged"))));
}

// Two nodes of two ranks each do not see each other's folders: tp within a node, dp across.
RANKS_TEST_F(Recovery, NodesWithoutASharedFileSystem) {
  const fs::path mine = folder_ / (test_world()->rank() < 2 ? "node0" : "node1");
  constexpr Topology kMesh{.pp_size = 1, .dp_size = 2, .tp_size = 2};
  TinyRun run(kMesh, 3);
  run.train(2);
  run.engine.save_checkpoint(mine);
  const auto state = run.state();
  const double expected = run.train(1);
  EXPECT_EQ(files_in(mine / "global_step2").size(), 2 * 2 + 1);
  EXPECT_EQ(read_manifest(mine / "global_step2")->files.size(), 4 * 2);
  EXPECT_EQ(read_text(mine / kLatestFile), "global_step2");

  TinyRun again(kMesh, 3);
  const LoadResult loaded = again.engine.load_checkpoint(mine, {.verify = true});
  EXPECT_EQ(loaded.path, mine / "global_step2");
  EXPECT_TRUE(same(again.state(), state));
  EXPECT_EQ(again.train(1), expected);

  TinyRun other(kSplit, 1);
  EXPECT_REFUSES(other.engine.load_checkpoint(mine), "is missing",
                 "(written on " + host_name() + ")");

  // One of the nodes gets another run's save of the same step.
  TinyRun stranger(kMesh, 3);
  stranger.train(3);
  const bool first_node = test_world()->rank() < 2;
  stranger.engine.save_checkpoint(folder_ / (first_node ? "elsewhere" : "node1"),
                                  {.tag = "global_step2"});
  EXPECT_REFUSES(again.engine.load_checkpoint(mine, {.fallback = false}),
                 "is of another save than the one on");
}

// One node has this model's checkpoint, the other another model's, and neither has a manifest. No
// rank may wait for another.
RANKS_TEST_F(Recovery, NodesThatHoldDifferentModelsRefuseTogether) {
  TinyOptions larger;
  larger.gpt.num_layers = 4;
  for (const auto& [name, options] :
       {std::pair("node0", TinyOptions()), std::pair("node1", larger)}) {
    TinyRun run(kSlices, 1, options);
    run.train(1);
    const fs::path folder = folder_ / name;
    run.engine.save_checkpoint(folder);
    on_first_rank([&] {
      const fs::path output = folder / "global_step1_universal";
      convert_to_universal({.input = folder / "global_step1", .output = output}, {});
      fs::remove(output / kManifestFile);
    });
  }
  TinyRun run(kSlices, 1);
  const auto before = run.state();
  const fs::path mine = folder_ / (test_world()->rank() < 2 ? "node0" : "node1");
  EXPECT_REFUSES(run.engine.load_checkpoint(mine, {.universal = true}), "node1",
                 "unexpected, not in this model");
  EXPECT_TRUE(same(run.state(), before));
}

RANKS_TEST_F(Recovery, OnlyWhatSavesLeftIsRemovedAndOnlyTagsAreReplaced) {
  const fs::path conversion = folder_ / "global_step1_universal.tmp" / kZeroFolder,
                 other = folder_ / "global_step1";
  const std::vector<fs::path> leftovers{folder_ / "global_step9.tmp", folder_ / "12345.tmp",
                                        folder_ / "best.tmp", folder_ / "first.old.tmp",
                                        folder_ / "global_step8.tmp"},
      others{folder_ / "data.tmp", folder_ / "hf.tmp", folder_ / "notes.old.tmp"};
  on_first_rank([&] {
    for (const fs::path& folder : {conversion, other / "thesis"}) fs::create_directories(folder);
    for (const fs::path& folder : leftovers) fs::create_directories(folder);
    for (const fs::path& folder : others) fs::create_directories(folder);
    write_text_atomically(leftovers[2] / model_states_file(0), "half");
    write_text_atomically(leftovers[2] / (layer_states_file(2, 0) + ".tmp"), "half");
    write_text_atomically(leftovers[3] / model_states_file(0), "whole");
    write_text_atomically(leftovers[3] / kManifestFile, "whole");
    fs::create_directory(leftovers[4] / "678.tmp");  // ranks test with it whether they share a disk
    write_text_atomically(others[0] / model_states_file(0), "");
    write_text_atomically(others[0] / "mine", "");
    write_text_atomically(others[2] / "mine", "");
  });
  TinyRun run(kData, 1);
  run.train(1);
  EXPECT_REFUSES(run.engine.save_checkpoint(folder_),
                 (other / "thesis").string() +
                     " is no file of a checkpoint, and the save "
                     "would replace " +
                     other.string());
  EXPECT_TRUE(fs::exists(other / "thesis"));
  run.train(1);
  run.engine.save_checkpoint(folder_);
  EXPECT_TRUE(fs::exists(conversion));
  for (const fs::path& folder : leftovers) EXPECT_FALSE(fs::exists(folder)) << folder;
  EXPECT_TRUE(fs::exists(folder_ / "first" / kManifestFile)) << "killed while it was replaced";
  for (const fs::path& folder : others) EXPECT_TRUE(fs::exists(folder)) << folder;
}

// A save refuses entries that are not ours, by name and before it writes. They may be in the tag's
// folder, or in the place where it would be built.
RANKS_TEST_F(Recovery, ASaveTouchesNothingOfTheUsers) {
  TinyRun run(kData, 1);
  run.engine.save_checkpoint(folder_, {.tag = "best"});
  const fs::path elsewhere = folder_ / "elsewhere", built = folder_ / "best.tmp",
                 notes = folder_ / "best" / "notes.txt";
  const auto refused = [&](const std::function<void()>& prepare, const std::string& named) {
    on_first_rank(prepare);
    const auto before = files_in(folder_);
    test_world()->barrier();
    EXPECT_REFUSES(run.engine.save_checkpoint(folder_, {.tag = "best"}), named + " is no",
                   "move it away, or save elsewhere");
    test_world()->barrier();
    EXPECT_EQ(files_in(folder_), before);
    test_world()->barrier();
  };
  refused([&] { write_text_atomically(notes, "thesis"); }, notes);
  refused(
      [&] {
        fs::remove(notes);
        fs::create_directories(built);
        write_text_atomically(built / "notes.txt", "thesis");
      },
      built / "notes.txt");
  refused(
      [&] {
        fs::rename(built, elsewhere);
        fs::create_directory_symlink(elsewhere, built);
      },
      built);
  on_first_rank([&] {
    EXPECT_EQ(read_text(elsewhere / "notes.txt"), "thesis");
    fs::remove(built);
    fs::create_symlink(elsewhere / "notes.txt", folder_ / "latest.tmp");
    write_text_atomically(folder_ / "weights.bin", "thesis");
  });
  run.engine.save_checkpoint(folder_, {.tag = "best"});
  EXPECT_REFUSES(run.engine.save_16bit_model(folder_, "weights.bin"),
                 "weights.bin exists and is not a torch file");
  EXPECT_EQ(read_text(folder_ / "weights.bin"), "thesis");
  EXPECT_EQ(read_text(elsewhere / "notes.txt"), "thesis");
}

// A run that holds the folder's lock saves there, and no other does. A save without one takes its
// own.
RANKS_TEST_F(Recovery, OneRunSavesToAFolder) {
  {
    const auto lock = std::make_shared<SaveLock>(*test_world(), folder_, "--save");
    TinyRun run(kPipes, 1, {.save_lock = lock}), other(kPipes, 1);
    run.engine.save_checkpoint(folder_);
    for (const bool async : {false, true})
      EXPECT_REFUSES(other.engine.save_checkpoint(folder_, {.async = async}),
                     "save_dir " + folder_.string() + " is being written by ",
                     " on " + host_name() + " since ");
    EXPECT_REFUSES(SaveLock(*test_world(), folder_, "--save"),
                   "--save " + folder_.string() + " is being written by ");
    other.engine.save_checkpoint(folder_ / "another");
    run.train(1);
    run.engine.save_checkpoint(folder_);
    EXPECT_EQ(run.engine.load_checkpoint(folder_).path, folder_ / "global_step1");
    test_world()->barrier();
  }
  TinyRun one(kPipes, 1), two(kPipes, 1);
  one.engine.save_checkpoint(folder_, {.async = true});
  EXPECT_REFUSES(two.engine.save_checkpoint(folder_), "is being written by");
  one.engine.finish_save();
  test_world()->barrier();
  two.engine.save_checkpoint(folder_);
  test_world()->barrier();
  EXPECT_FALSE(fs::exists(folder_ / ".anymesh.lock"));
  { const SaveLock lock(*test_world(), folder_ / "new" / "folder", "--save"); }
  test_world()->barrier();
  EXPECT_FALSE(fs::exists(folder_ / "new" / "folder")) << "nothing was saved there";
}

// The file system cannot swap two folders, and the run was killed while it replaced the tag that
// `latest` names.
RANKS_TEST_F(Recovery, GivesAReplacedTagItsNameBack) {
  TinyRun run(kData, 1);
  run.train(1);
  run.engine.save_checkpoint(folder_, {.tag = "best"});
  on_first_rank([&] { fs::rename(folder_ / "best", folder_ / "best.old.tmp"); });
  EXPECT_EQ(run.engine.load_checkpoint(folder_).path, folder_ / "best.old.tmp");
  EXPECT_FALSE(fs::exists(folder_ / "best")) << "a reader renames nothing";
  run.engine.save_checkpoint(folder_);
  EXPECT_EQ(run.engine.load_checkpoint(folder_, {.tag = "best"}).path, folder_ / "best");
}

// A later program's format is not damage, so no older checkpoint takes its place.
RANKS_TEST_F(Recovery, StopsAtALaterFormat) {
  TinyRun run(kData, 1);
  run.train_and_save(2, folder_);
  const fs::path manifest = folder_ / "global_step2" / kManifestFile;
  on_first_rank([&] {
    std::string text = read_text(manifest);
    text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
    write_text_atomically(manifest, text);
  });
  EXPECT_THAT(
      message_of([&] { run.engine.load_checkpoint(folder_); }),
      AllOf(HasSubstr("is of version 9, this program knows 1 to"), Not(HasSubstr("damaged"))));
}

RANKS_TEST_F(RecoveryOfProcesses, AFailedSaveLeavesTheOneBefore) {
  TinyRun run(kData, 1);
  run.train(1);
  run.engine.save_checkpoint(folder_);
  const auto before = run.state();
  run.train(1);
  for (const int full : {0, 2, 3}) {
    const FileSizeLimit limit(test_world()->rank() == full ? 3000 : RLIM_INFINITY);
    EXPECT_REFUSES(run.engine.save_checkpoint(folder_), "[rank " + std::to_string(full) + "]",
                   "File too large");
    test_world()->barrier();
    EXPECT_THAT(files_in(folder_), ElementsAre("global_step1", std::string(kLatestFile),
                                               std::string(kZeroToFp32File)));
  }
  const auto after = run.state();
  run.engine.load_checkpoint(folder_);
  EXPECT_TRUE(same(run.state(), before));
  EXPECT_FALSE(same(before, after));
}

}  // namespace
}  // namespace anymesh
