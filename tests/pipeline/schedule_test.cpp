#include "framework/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <string>

namespace anymesh {
namespace {

TEST(OneFOneB, IsTheFigure) {
  std::string text;
  for (const Step& step : one_f_one_b(0, 4, 6)) {
    text += step.op == Op::Forward ? 'F' : 'B';
    text += std::to_string(step.micro_batch);
    text += ' ';
  }
  EXPECT_EQ(text, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5 ");
}

TEST(OneFOneB, EveryMicroBatchOnceAndFewInFlight) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (int n = 1; n <= 12; ++n) {
        int in_flight = 0, peak = 0, forward = 0, backward = 0;
        for (const Step& step : one_f_one_b(stage, stages, n)) {
          EXPECT_EQ(step.micro_batch, step.op == Op::Forward ? forward++ : backward++);
          in_flight += step.op == Op::Forward ? 1 : -1;
          ASSERT_GE(in_flight, 0);
          peak = std::max(peak, in_flight);
        }
        EXPECT_EQ(forward, n);
        EXPECT_EQ(backward, n);
        EXPECT_EQ(peak, std::min(stages - stage, n));
      }
    }
  }
}

TEST(LayersOfStage, CoverAllLayersEvenly) {
  for (int layers = 1; layers <= 13; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      int next = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const LayerRange range = layers_of_stage(layers, stages, stage);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, layers / stages);
        EXPECT_LE(range.end - range.begin, (layers + stages - 1) / stages);
        next = range.end;
      }
      EXPECT_EQ(next, layers);
    }
  }
}

}  // namespace
}  // namespace anymesh
