#include <gtest/gtest.h>

#include "framework/util/format.h"

namespace anymesh {
namespace {

TEST(SizeText, TakesTheFittingUnit) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(999), "999 B");
  EXPECT_EQ(size_text(1000), "1.00 KB");
  EXPECT_EQ(size_text(999'990), "999.99 KB");
  EXPECT_EQ(size_text(999'999), "1.00 MB");
  EXPECT_EQ(size_text(1.49e9), "1.49 GB");
  EXPECT_EQ(size_text(12e12), "12.00 TB");
  EXPECT_EQ(size_text(5e15), "5000.00 TB");
}

TEST(DurationText, TakesTheFittingUnit) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(99), "99 s");
  EXPECT_EQ(duration_text(100), "2 min");
  EXPECT_EQ(duration_text(5900), "98 min");
  EXPECT_EQ(duration_text(6000), "1.7 h");
  EXPECT_EQ(duration_text(12240), "3.4 h");
  EXPECT_EQ(duration_text(216000), "2.5 days");
}

}  // namespace
}  // namespace anymesh
