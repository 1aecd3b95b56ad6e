// Runs the program as a user calls it: flags, exit codes, printed text.

#include <sys/wait.h>

#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

class Tool : public TempFolder {
 protected:
  // Returns the exit code; output and errors are left in `printed_`.
  int run(const std::string& arguments) {
    const auto log = folder_ / "log";
    const std::string command =
        std::string(ANYMESH_TOOL) + " " + arguments + " > " + log.string() + " 2>&1";
    const int status = std::system(command.c_str());
    printed_ = read_file(log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  bool has_printed(const std::string& text) const {
    return printed_.find(text) != std::string::npos;
  }

  std::string printed_;
  std::string input_ =
      "--input_folder " + (fixture("z1-bf16-dp2") / "checkpoint" / tag_folder(4)).string();
  fs::path output_ = folder_ / "out" / "universal";
  std::string flags_ = input_ + " --output_folder " + output_.string() + " --inject_missing_state";
};

TEST_F(Tool, ConvertsAndReports) {
  EXPECT_EQ(run(flags_ + " --num_extract_workers 2 --num_merge_workers 3 --no_strict"), 0)
      << printed_;
  EXPECT_TRUE(has_printed("ZeRO 1, tp 1, pp 1, dp 2")) << printed_;
  EXPECT_TRUE(has_printed("30 parameters, 114 tensors")) << printed_;
  EXPECT_TRUE(has_printed("every element covered exactly once (53955 elements)")) << printed_;
  EXPECT_TRUE(fs::exists(output_ / kZeroFolder / kOptimizerStateFile));
  EXPECT_FALSE(fs::exists(output_ / "tmp"));
}

TEST_F(Tool, KeepsThePlanWhenAsked) {
  EXPECT_EQ(run(flags_ + " --keep_temp_folder"), 0) << printed_;
  EXPECT_TRUE(fs::exists(output_ / "tmp" / "plan.json"));
}

TEST_F(Tool, BadArgumentsExitWith2) {
  for (const std::string& bad :
       {std::string("--output_folder x"), input_, flags_ + " --no_such_flag", flags_ + " stray",
        flags_ + " --num_merge_workers 0", flags_ + " --num_merge_workers many",
        flags_ + " --num_extract_workers -1"}) {
    EXPECT_EQ(run(bad), 2) << bad << ": " << printed_;
    EXPECT_TRUE(has_printed("(see --help)")) << printed_;
  }
  EXPECT_FALSE(fs::exists(output_));
}

TEST_F(Tool, FailuresExitWith1AndSayWhy) {
  EXPECT_EQ(
      run("--input_folder " + folder_.string() + "/absent --output_folder " + output_.string()), 1);
  EXPECT_TRUE(has_printed("ds_to_universal: the input folder")) << printed_;
}

TEST_F(Tool, DryRunPrintsThePlanAndLeavesNothing) {
  EXPECT_EQ(run(flags_ + " --dry-run"), 0) << printed_;
  EXPECT_TRUE(has_printed("would get 116 files, ")) << printed_;
  EXPECT_TRUE(has_printed("of 30 parameters, 114 tensors; ")) << printed_;
  EXPECT_TRUE(has_printed(" s at the measured ")) << printed_;
  EXPECT_TRUE(has_printed("every element covered exactly once (53955 elements)")) << printed_;
  fs::remove(folder_ / "log");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Tool, WarnsOfMissingRulesWhereThereIsNothingToMerge) {
  EXPECT_EQ(run(input_ + " --output_folder " + output_.string()), 0);
  EXPECT_TRUE(has_printed("warning: ")) << printed_;
  EXPECT_TRUE(has_printed("it has one tp rank, so there is nothing to merge")) << printed_;
}

}  // namespace
}  // namespace anymesh
