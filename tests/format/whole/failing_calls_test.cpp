// Converts with one failing call of the operating system, each in turn. No half of a folder is left
// under the output's name, and the next conversion ends in the same bytes.
#include "tests/support/failing_calls.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/whole/convert.h"
#include "tests/support/fixtures.h"
#include "tests/support/synthetic.h"
#include "tests/support/tree.h"

namespace anymesh {
namespace {

class FailingCalls : public TempFolder {
 protected:
  const ConvertOptions options_{.input = folder_ / "global_step1",
                                .output = folder_ / "global_step1_universal",
                                .inject_missing_info = true};
};

// The folder to be replaced has a manifest, or none, like DeepSpeed's. Then the file system cannot
// swap two folders, and for a moment there is none under the output's name.
TEST_F(FailingCalls, AfterAKillAtAnyCallTheNextRunMakesUpForIt) {
  Synthetic{.parameters = {{"a.weight", {3, 7}}, {"b.bias", {5}}}, .dp = 2}.write(options_.input);
  convert_to_universal(options_, {});
  const auto expected = tree(options_.output);
  for (const auto& [has_manifest, swaps] : {std::pair(true, true), {false, true}, {true, false}}) {
    FailingCall::cannot_swap = !swaps;
    bool killed = true;
    int64_t at = 0;
    for (; killed; ++at) {
      SCOPED_TRACE("call " + std::to_string(at));
      if (!has_manifest) fs::remove(options_.output / kManifestFile);
      const auto before = tree(options_.output);
      const pid_t child = fork();
      if (child == 0) {
        const FailingCall killing(folder_, at, FailingCall::kKill);
        convert_to_universal(options_, {});
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      killed = WIFSIGNALED(status);
      if (fs::exists(options_.output) || swaps) {
        EXPECT_THAT(tree(options_.output), AnyOf(before, expected));
      }
      convert_to_universal(options_, {});
      EXPECT_EQ(tree(options_.output), expected);
      EXPECT_EQ(list_folder(folder_), "global_step1, global_step1_universal, latest_universal");
    }
    EXPECT_GT(at, 60);
  }
  FailingCall::cannot_swap = false;
}

TEST_F(FailingCalls, NoneLeavesHalfAConversion) {
  Synthetic{.parameters = {{"a.weight", {3, 7}}, {"b.bias", {5}}}, .dp = 2}.write(options_.input);
  convert_to_universal(options_, {});
  const auto expected = tree(options_.output);
  ASSERT_GT(expected.size(), 6u);
  int64_t at = 0;
  for (bool met = true; met; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    fs::remove_all(options_.output);
    fs::remove(folder_ / kLatestUniversalFile);
    std::string message;
    {
      const FailingCall failing(folder_, at, at % 2 == 0 ? ENOSPC : EIO);
      message = message_of([&] { convert_to_universal(options_, {}); });
      met = failing.met();
    }
    ASSERT_EQ(met, !message.empty());
    if (fs::exists(options_.output)) {
      EXPECT_EQ(tree(options_.output), expected);
    }
    if (fs::exists(folder_ / kLatestUniversalFile)) {
      EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), "global_step1_universal");
    }
    convert_to_universal(options_, {});
    EXPECT_EQ(tree(options_.output), expected);
    EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), "global_step1_universal");
  }
  EXPECT_GT(at, 40);
}

}  // namespace
}  // namespace anymesh
