// Runs the program as a user calls it: flags, exit codes, printed text.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "tests/support/fixtures.h"
#include "tests/support/synthetic.h"

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

// Kills the program (kill -9) once a number of files is there, and starts it again, until one run
// is quicker than that.
class Interrupted : public Tool {
 protected:
  using Tree = std::map<std::string, std::string>;

  void SetUp() override {
    Synthetic source{.dp = 2, .tp = 2};
    for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"})
      source.parameters.push_back({name, {512, 1024}});
    source.info = Value::dict(
        {{keys::kUniversalVersion, 0.4}, {keys::kRowParallelPatterns, Value::list({"b.weight"})}});
    source.write(folder_ / "global_step1");
  }

  static Tree tree(const fs::path& folder) {
    Tree files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file())
        files[fs::relative(entry.path(), folder)] = read_file(entry.path());
    return files;
  }

  size_t files_begun() const {
    size_t count = 0;
    std::error_code gone;  // when the folder gets its name
    const fs::path zero = output_.string() + std::string(kTemporarySuffix) + "/zero";
    for (fs::recursive_directory_iterator entry(zero, gone), end; entry != end;
         entry.increment(gone))
      count += entry->is_regular_file(gone);
    return count;
  }

  // Returns whether it was killed.
  bool run_until(size_t files) const {
    const pid_t child = fork();
    if (child == 0) {
      execl(ANYMESH_TOOL, ANYMESH_TOOL, "--input_folder", (folder_ / "global_step1").c_str(),
            "--output_folder", output_.c_str(), "--num_merge_workers", "2", nullptr);
      _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0)
      if (files_begun() >= files) kill(child, SIGKILL);
    return WIFSIGNALED(status);
  }
};

TEST_F(Interrupted, GoesOnAndEndsInTheSameBytes) {
  const std::string arguments = "--input_folder " + (folder_ / "global_step1").string() +
                                " --output_folder " + output_.string();
  ASSERT_EQ(run(arguments), 0) << printed_;
  const Tree expected = tree(output_);
  ASSERT_EQ(expected.size(), 4u * 4 + 1 + 4 + 1);
  fs::remove_all(output_);
  int killed = 0;
  for (const size_t files : {1, 6, 9, 3, 12}) {
    if (!run_until(files)) break;
    ++killed;
    EXPECT_FALSE(fs::exists(output_));
  }
  EXPECT_GE(killed, 1);
  const fs::path temporary = output_.string() + std::string(kTemporarySuffix);
  if (fs::exists(temporary)) {
    write_file(temporary / "zero" / "a.weight" / "fp32.pt", "of another time");
    write_file(temporary / "zero" / "stray.pt", "thesis");
    EXPECT_EQ(run(arguments), 1);
    EXPECT_TRUE(has_printed("zero/stray.pt is not of a run of ours")) << printed_;
    EXPECT_EQ(read_file(temporary / "zero" / "stray.pt"), "thesis");
    fs::remove(temporary / "zero" / "stray.pt");
  }
  ASSERT_EQ(run(arguments), 0) << printed_;
  EXPECT_EQ(tree(output_), expected);
  EXPECT_FALSE(fs::exists(temporary));
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
        "--keep_temp_folder", "--dry-run", "--no_strict", "--inject_missing_state"}) {
    EXPECT_TRUE(has_printed(flag)) << flag;
  }
}

}  // namespace
}  // namespace anymesh
