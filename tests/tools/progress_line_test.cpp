#include "tools/progress_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace anymesh {
namespace {

// Returns what is printed where there is no terminal.
std::string printed(const std::vector<Progress>& steps) {
  std::FILE* const file = std::tmpfile();
  ProgressLine line(file);
  for (const Progress& progress : steps) line.show(progress);
  std::string text(static_cast<size_t>(std::ftell(file)), ' ');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(ProgressLine, ShowsEachTenthOfATotal) {
  EXPECT_EQ(printed({{1000, 20000, 1}, {4000, 20000, 2}, {5000, 20000, 3}, {20000, 20000, 4}}),
            "20 % of 20.00 KB, 2.00 KB/s, ETA 8 s\n100 % of 20.00 KB, 5.00 KB/s, ETA 0 s\n");
}

// An input may grow while it is read.
TEST(ProgressLine, ShowsNoMoreThanAll) {
  EXPECT_EQ(printed({{4000, 2000, 2}}), "100 % of 2.00 KB, 2.00 KB/s, ETA 0 s\n");
}

TEST(ProgressLine, ShowsTheAmountOncePerMinuteWithoutATotal) {
  EXPECT_EQ(printed({{1000, 0, 59}, {6000, 0, 60}, {7000, 0, 70}, {12000, 0, 120}}),
            "6.00 KB, 100 B/s\n12.00 KB, 100 B/s\n");
}

}  // namespace
}  // namespace anymesh
