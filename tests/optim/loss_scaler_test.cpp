#include "framework/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <vector>

namespace anymesh {
namespace {

// Returns the scales after each step; 'x' is an overflow.
std::vector<double> scales(LossScaler scaler, const std::string& steps) {
  std::vector<double> out;
  for (const char step : steps) {
    EXPECT_TRUE(scaler.update(step == 'x'));
    out.push_back(scaler.scale);
  }
  return out;
}

// The numbers that DeepSpeed 0.19.8's DynamicLossScaler gives for the same steps.
TEST(LossScaler, DynamicEqualsDeepSpeeds) {
  LossScaler s{.dynamic = true, .scale = 1024, .window = 3};
  EXPECT_EQ(scales(s, "..x....x.....x"),
            (std::vector<double>{1024, 1024, 512, 512, 512, 512, 1024, 512, 512, 512, 512, 1024,
                                 1024, 512}));
  s.hysteresis = s.hysteresis_left = 2;
  EXPECT_EQ(scales(s, "x.xx...xx.x"),
            (std::vector<double>{1024, 1024, 512, 256, 256, 256, 256, 128, 64, 64, 32}));
}

TEST(LossScaler, StopsAtTheMinimum) {
  LossScaler s{.dynamic = true, .scale = 6, .min_scale = 2};
  EXPECT_TRUE(s.update(true));
  EXPECT_EQ(s.scale, 3);
  EXPECT_TRUE(s.update(true));
  EXPECT_EQ(s.scale, 2);
  EXPECT_FALSE(s.update(true));
  EXPECT_EQ(s.scale, 2);
}

TEST(LossScaler, StaticNeverMoves) {
  EXPECT_EQ(scales({.scale = 128}, "x.x"), (std::vector<double>{128, 128, 128}));
}

}  // namespace
}  // namespace anymesh
