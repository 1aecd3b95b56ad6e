// The program as a user calls it: flags, exit codes, what it prints.

#include <sys/wait.h>

#include "framework/checkpoint/format/names.h"
#include "support.h"

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
  std::filesystem::path output_ = folder_ / "out" / "universal";
  std::string flags_ = input_ + " --output_folder " + output_.string() + " --inject_missing_state";
};

TEST_F(Tool, ConvertsAndReports) {
  EXPECT_EQ(run(flags_ + " --num_extract_workers 2 --num_merge_workers 3 --no_strict"), 0)
      << printed_;
  EXPECT_TRUE(has_printed("ZeRO 1, tp 1, pp 1, dp 2")) << printed_;
  EXPECT_TRUE(has_printed("30 parameters, 114 tensors")) << printed_;
  EXPECT_TRUE(has_printed("every element covered exactly once (53955 elements)")) << printed_;
  EXPECT_TRUE(std::filesystem::exists(output_ / kZeroFolder / kOptimizerStateFile));
  EXPECT_FALSE(std::filesystem::exists(output_ / "tmp"));
}

TEST_F(Tool, KeepsThePlanWhenAsked) {
  EXPECT_EQ(run(flags_ + " --keep_temp_folder"), 0) << printed_;
  EXPECT_TRUE(std::filesystem::exists(output_ / "tmp" / "plan.json"));
}

TEST_F(Tool, BadArgumentsExitWith2) {
  for (const std::string& bad :
       {std::string("--output_folder x"), input_, flags_ + " --no_such_flag", flags_ + " stray",
        flags_ + " --num_merge_workers 0", flags_ + " --num_merge_workers many",
        flags_ + " --num_extract_workers -1"}) {
    EXPECT_EQ(run(bad), 2) << bad << ": " << printed_;
    EXPECT_TRUE(has_printed("(see --help)")) << printed_;
  }
  EXPECT_FALSE(std::filesystem::exists(output_));
}

TEST_F(Tool, FailuresExitWith1AndSayWhy) {
  EXPECT_EQ(
      run("--input_folder " + folder_.string() + "/absent --output_folder " + output_.string()), 1);
  EXPECT_TRUE(has_printed("ds_to_universal: the input folder")) << printed_;
}

TEST_F(Tool, WarnsOfMissingRulesWhereThereIsNothingToMerge) {
  EXPECT_EQ(run(input_ + " --output_folder " + output_.string()), 0);
  EXPECT_TRUE(has_printed("warning: ")) << printed_;
  EXPECT_TRUE(has_printed("it has one tp rank, so there is nothing to merge")) << printed_;
}

TEST_F(Tool, HelpNamesEveryFlag) {
  EXPECT_EQ(run("--help"), 0);
  for (const char* flag :
       {"--input_folder", "--output_folder", "--num_extract_workers", "--num_merge_workers",
        "--keep_temp_folder", "--no_strict", "--inject_missing_state"}) {
    EXPECT_TRUE(has_printed(flag)) << flag;
  }
}

}  // namespace
}  // namespace anymesh
