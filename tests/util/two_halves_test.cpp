#include "framework/util/two_halves.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace anymesh {
namespace {

// A piece arrives in its half only once it is waited for.
TEST(TwoHalves, CopiesEveryByteWithOnePieceUnderWay) {
  constexpr size_t kPiece = 4;
  for (size_t size = 0; size <= 5 * kPiece; ++size) {
    std::string source(size, ' '), copy(size, '?');
    std::iota(source.begin(), source.end(), 'A');
    std::string halves[2];
    bool busy[2] = {};
    int most = 0;
    in_two_halves(
        size, kPiece,
        [&](size_t at, size_t n, size_t half) {
          ASSERT_LT(half, 2u);
          ASSERT_FALSE(busy[half]);
          ASSERT_LE(n, kPiece);
          busy[half] = true;
          most = std::max(most, busy[0] + busy[1]);
          halves[half] = source.substr(at, n);
        },
        [&](size_t at, size_t n, size_t half) {
          ASSERT_TRUE(busy[half]);
          busy[half] = false;
          copy.replace(at, n, halves[half]);
        });
    EXPECT_EQ(copy, source);
    EXPECT_EQ(most, size == 0 ? 0 : size <= kPiece ? 1 : 2) << size;
    EXPECT_FALSE(busy[0] || busy[1]);
  }
}

}  // namespace
}  // namespace anymesh
