#include "framework/checkpoint/save/retention.h"

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

class Retention : public TempFolder {
 protected:
  void save(int64_t step) {
    const fs::path tag = folder_ / tag_folder(step);
    fs::create_directory(tag);
    write_text_atomically(tag / model_states_file(0), "");
    const Manifest manifest{
        .tag = tag_folder(step), .iteration = step, .files = {{.name = model_states_file(0)}}};
    if (step % 2 == 0) write_text_atomically(tag / kManifestFile, manifest.to_json());
    write_text_atomically(folder_ / kLatestFile, tag_folder(step));
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(Retention, KeepsTheNewestTheRetainedAndWhatIsNotATag) {
  for (const int64_t step : {5, 10, 15, 90, 100}) save(step);
  for (const char* name : {"global_step5_universal", "mine", "global_stepX"})
    fs::create_directory(folder_ / name);
  EXPECT_EQ(remove_old_checkpoints(folder_, 2, 10).size(), 2);
  EXPECT_THAT(names(), ElementsAre("global_step10", "global_step100", "global_step5_universal",
                                   "global_step90", "global_stepX", "latest", "mine"));
  EXPECT_THAT(remove_old_checkpoints(folder_, 2, 10), ElementsAre());
  EXPECT_THAT(remove_old_checkpoints(folder_, 1, 0),
              ElementsAre(HasSubstr("removed "), HasSubstr("global_step10")));
}

// A folder that has a tag's name but is none, or has another file in it, stays and is named.
TEST_F(Retention, RemovesNothingOfTheUsers) {
  for (int64_t step = 1; step <= 9; ++step) save(step);
  const auto of = [&](int64_t step) { return folder_ / tag_folder(step); };
  fs::rename(of(1), folder_ / "moved");
  fs::create_directory(of(1));
  write_text_atomically(of(1) / "t.txt", "thesis");
  write_text_atomically(of(2) / "notes.txt", "thesis");
  write_text_atomically(of(3) / "notes.txt", "thesis");
  fs::create_directory(of(4) / "data");
  fs::rename(of(5), folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", of(5));
  fs::remove(of(6) / model_states_file(0));
  fs::create_symlink(folder_ / "moved" / model_states_file(0), of(6) / model_states_file(0));
  fs::rename(of(7) / model_states_file(0), of(7) / kManifestFile);  // no manifest, nor a tag's file
  write_text_atomically(temporary_of(of(8)), "in the way");
  std::string lines;
  for (const std::string& line : remove_old_checkpoints(folder_, 1, 0)) lines += line + "\n";
  for (const char* left :
       {"1/t.txt is no", "2/notes.txt is no", "3/notes.txt is no", "4/data is no", "5 is no",
        "6/mp_rank_00_model_states.pt is no", "7/manifest.json is no", "8: Not a directory"})
    EXPECT_THAT(lines, HasSubstr(std::string("global_step") + left));
  EXPECT_THAT(names(),
              ElementsAre("elsewhere", "global_step1", "global_step2", "global_step3",
                          "global_step4", "global_step5", "global_step6", "global_step7",
                          "global_step8", "global_step8.tmp", "global_step9", "latest", "moved"));
  EXPECT_EQ(read_text(temporary_of(of(8))), "in the way");
}

// A run went back to an older tag. The tag that `latest` names stays, however old, and so do those
// before it that the limit has room for. Newer tags are not this run's.
TEST_F(Retention, CountsFromTheLatest) {
  for (const int64_t step : {2, 3, 5, 10, 15}) save(step);
  write_text_atomically(folder_ / kLatestFile, tag_folder(5));
  remove_old_checkpoints(folder_, 2, 0);
  EXPECT_THAT(names(), ElementsAre("global_step10", "global_step15", "global_step3", "global_step5",
                                   "latest"));
}

TEST_F(Retention, CountsWhatThereWillBe) {
  EXPECT_EQ(most_checkpoints({.folder = folder_, .saves = 7}), 7);
  EXPECT_EQ(most_checkpoints({.folder = folder_, .saves = 7, .limit = 2}), 3);
  EXPECT_EQ(most_checkpoints({.folder = folder_, .saves = 2, .limit = 2}), 2);
  EXPECT_EQ(most_checkpoints({.folder = folder_, .saves = 70, .limit = 2, .retained = 4}), 7);
  for (const int64_t step : {5, 10, 15}) save(step);  // the next save makes room
  EXPECT_EQ(most_checkpoints({.folder = folder_, .saves = 7, .limit = 2}), 1);
  // Steps 5 and 15 can be removed; step 10 is retained.
  EXPECT_EQ(most_checkpoints(
                {.folder = folder_, .saves = 7, .limit = 2, .retain_interval = 10, .retained = 1}),
            2);
  EXPECT_EQ(most_checkpoints(
                {.folder = folder_, .saves = 7, .limit = 2, .retain_interval = 5, .retained = 1}),
            4);
}

TEST_F(Retention, RefusesWhatCannotFit) {
  SaveSize size;
  size.model_states = {1, 1000};
  size.optimizer_states = {2, 2000};
  size.bytes_here = size.bytes();
  const fs::path folder = folder_ / "not" / "yet";
  EXPECT_THAT(preflight(size, {.folder = folder, .saves = 3}),
              ElementsAre("each checkpoint: 3.00 KB in 3 files: model states 1.00 KB (1), "
                          "optimizer states 2.00 KB (2)",
                          HasSubstr("3 to come, at most 3 more at a time: 9.00 KB of the ")));
  const auto free = static_cast<int64_t>(fs::space(folder_).available);
  size.optimizer_states.bytes = free;  // this node has less than a quarter
  size.bytes_here = free / 9 * 2;
  const auto error = [&](const SavePlan& plan) {
    return message_of([&] { preflight(size, plan); });
  };
  EXPECT_EQ(error({.folder = folder, .saves = 4}), "");
  EXPECT_THAT(error({.folder = folder, .saves = 40}), HasSubstr("--save-total-limit 3 would fit"));
  EXPECT_EQ(error({.folder = folder, .saves = 40, .limit = 3}), "");
  EXPECT_THAT(error({.folder = folder, .saves = 40}), HasSubstr("B here: "));
  size.bytes_here = 2 * free;  // others may free some meanwhile
  EXPECT_THAT(error({.folder = folder, .saves = 1}), HasSubstr("free space"));
}

}  // namespace
}  // namespace anymesh
