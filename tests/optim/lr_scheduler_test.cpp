#include "framework/optim/lr_scheduler.h"

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

// Rates that a real Megatron-DeepSpeed run logged: 20 iterations of 8 samples, 3 of warmup, cosine
// from 1e-3 to 1e-4. It logs the rate of the step to come.
TEST(LrSchedule, CosineEqualsMegatrons) {
  const LrSchedule schedule{.max_lr = 1e-3,
                            .min_lr = 1e-4,
                            .warmup_samples = 24,
                            .decay_samples = 160,
                            .style = "cosine"};
  const double logged[] = {3.333333333e-4, 6.666666667e-4, 1.000000000e-3, 9.923378949e-4,
                           9.696125032e-4, 9.325977111e-4, 8.825540127e-4, 8.211855864e-4,
                           7.505822601e-4, 6.731483455e-4, 5.915207618e-4, 5.084792382e-4,
                           4.268516545e-4, 3.494177399e-4, 2.788144136e-4, 2.174459873e-4,
                           1.674022889e-4, 1.303874968e-4, 1.076621051e-4, 1.000000000e-4};
  EXPECT_EQ(schedule.at(0), 0);
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(schedule.at(8 * (i + 1)), logged[i], 5e-14) << i;
  EXPECT_EQ(schedule.at(1000), 1e-4);
}

TEST(LrSchedule, OtherStyles) {
  LrSchedule s{
      .max_lr = 1, .min_lr = 0.1, .warmup_samples = 0, .decay_samples = 100, .style = "linear"};
  EXPECT_EQ(s.at(0), 1);
  EXPECT_NEAR(s.at(50), 0.55, 1e-15);
  EXPECT_NEAR(s.at(100), 0.1, 1e-15);
  s.style = "constant";
  EXPECT_EQ(s.at(5000), 1);
  s.style = "inverse-square-root";
  s.warmup_samples = 4;
  EXPECT_EQ(s.at(2), 0.5);
  EXPECT_NEAR(s.at(16), 0.5, 1e-15);
  EXPECT_EQ(s.at(101), 0.1);
}

// The digits come from the formulas of Megatron-LM's OptimizerParamScheduler.
TEST(LrSchedule, WsdIsFlatAndThenFalls) {
  LrSchedule s{.max_lr = 1,
               .min_lr = 0.1,
               .warmup_samples = 10,
               .decay_samples = 100,
               .style = "WSD",
               .wsd_decay_samples = 20};
  EXPECT_EQ(s.at(5), 0.5);
  for (const double samples : {11, 50, 80}) EXPECT_EQ(s.at(samples), 1);
  for (const auto& [style, rate] : {std::pair("linear", 0.775),
                                    {"cosine", 0.868198051533946},
                                    {"exponential", 0.7136135474566861},
                                    {"minus_sqrt", 0.55}}) {
    s.wsd_decay_style = style;
    EXPECT_NEAR(s.at(85), rate, 1e-15) << style;
    EXPECT_NEAR(s.at(100), 0.1, 1e-15) << style;
  }
  EXPECT_EQ(s.at(101), 0.1);
}

TEST(LrSchedule, AFactorOfOnesOwnMultipliesTheRate) {
  LrSchedule s{.max_lr = 0.5, .warmup_samples = 10, .decay_samples = 100, .style = "steps"};
  s.factor = [](double samples) { return samples < 8 ? 1 : 0.25; };
  EXPECT_EQ(s.at(4), 0.5);
  EXPECT_EQ(s.at(1000), 0.125);
  s.factor = [](double samples) { return 1 - samples; };
  EXPECT_REFUSES(s.at(3),
                 "the learning-rate schedule \"steps\": the factor at 3 samples is -2, "
                 "expected a number from 0 on");
}

}  // namespace
}  // namespace anymesh
