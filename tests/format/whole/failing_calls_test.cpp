// Converts with one failing call of the operating system, each in turn. No half of a folder is left
// under the output's name, and the next conversion ends in the same bytes.
#include "tests/support/failing_calls.h"

#include <cerrno>
#include <map>

#include "framework/format/layout/names.h"
#include "framework/format/whole/convert.h"
#include "tests/support/fixtures.h"
#include "tests/support/synthetic.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

class FailingCalls : public TempFolder {
 protected:
  std::map<std::string, std::string> contents(const fs::path& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file())
        files[fs::relative(entry.path(), folder)] = read_file(entry.path());
    return files;
  }

  const ConvertOptions options_{.input = folder_ / "global_step1",
                                .output = folder_ / "global_step1_universal",
                                .inject_missing_info = true};
};

TEST_F(FailingCalls, NoneLeavesHalfAConversion) {
  Synthetic{.parameters = {{"a.weight", {3, 7}}, {"b.bias", {5}}}, .dp = 2}.write(options_.input);
  convert_to_universal(options_, {});
  const auto expected = contents(options_.output);
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
      EXPECT_EQ(contents(options_.output), expected);
    }
    if (fs::exists(folder_ / kLatestUniversalFile)) {
      EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), "global_step1_universal");
    }
    convert_to_universal(options_, {});
    EXPECT_EQ(contents(options_.output), expected);
    EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), "global_step1_universal");
  }
  EXPECT_GT(at, 40);
}

}  // namespace
}  // namespace anymesh
