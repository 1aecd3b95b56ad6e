// The plan of batches that follows from flags and mesh.
#include "framework/config/batch_ramp.h"
#include "tests/config/support.h"

namespace anymesh {
namespace {

std::vector<int64_t> sizes_of(const BatchRamp& ramp, int64_t full) {
  std::vector<int64_t> sizes;
  for (int64_t consumed = 0; consumed <= ramp.samples; consumed += sizes.back())
    sizes.push_back(ramp.batch_size(consumed, full));
  return sizes;
}

// The sizes and lengths are those of megatron/microbatches.py and update_train_iters().
TEST(BatchRamp, EqualsMegatrons) {
  const BatchRamp ramp{8, 4, 100};
  EXPECT_EQ(sizes_of(ramp, 24), (std::vector<int64_t>{8, 8, 8, 8, 12, 12, 16, 16, 20}));
  EXPECT_EQ(ramp.batch_size(101, 24), 24);
  EXPECT_EQ(ramp.steps(0, 400, 24), 21);
  EXPECT_EQ(sizes_of({2, 2, 7}, 8), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(BatchRamp({2, 2, 7}).steps(0, 40, 8), 7);

  const std::vector<int64_t> many = sizes_of({3, 3, 1000}, 21);
  for (const auto& [size, count] :
       {std::pair(3, 56), {6, 28}, {9, 19}, {12, 14}, {15, 11}, {18, 9}})
    EXPECT_EQ(std::ranges::count(many, size), count) << size;
  EXPECT_EQ(BatchRamp({3, 3, 1000}).steps(0, 5000, 21), 327);
}

TEST(BatchRamp, GoesOnFromAnySample) {
  const BatchRamp ramp{8, 4, 100};
  int64_t consumed = 0;
  for (int64_t step = 0; step < 21; ++step) {
    EXPECT_EQ(ramp.steps(consumed, 400, 24), 21 - step);
    consumed += ramp.batch_size(consumed, 24);
  }
  EXPECT_EQ(ramp.steps(consumed, 400, 24), 0);
  EXPECT_EQ(ramp.steps(500, 400, 24), 0);
  EXPECT_EQ(ramp.steps(0, 15, 24), 1);
  EXPECT_EQ(ramp.steps(0, 7, 24), 0);
}

TEST(BatchRamp, NoneIsFullSizeAtOnce) {
  const BatchRamp none = parse_batch_ramp({}, 24);
  EXPECT_EQ(none.batch_size(0, 24), 24);
  EXPECT_EQ(none.steps(0, 100, 24), 4);
}

TEST(BatchRamp, Refusals) {
  const auto refused = [](const std::string& values, int64_t full) {
    return refusal([&] { parse_batch_ramp(words(values), full); });
  };
  EXPECT_EQ(refused("8 4 100", 24), "");
  const std::string expected =
      ": expected the first size, the increment, and the samples until --global-batch-size (24), "
      "all at least 1";
  for (const char* values :
       {"8", "8 4", "8 4 100 1", "8 4 x", "0 4 100", "8 -4 100", "8 4 0", "8 4 99999999999"})
    EXPECT_EQ(refused(values, 24), "--rampup-batch-size " + std::string(values) + expected);
  EXPECT_EQ(refused("8 5 100", 24),
            "--rampup-batch-size 8 5 100: --global-batch-size (24) must be 8 and a positive "
            "multiple of 5; use --global-batch-size 23");
  EXPECT_THAT(refused("24 4 100", 24), EndsWith("use --global-batch-size 28"));
}

TEST(Plan, AccumulationOfAConfiguration) {
  GptCommandLine line;
  line.read("--micro-batch-size 3 --global-batch-size 24");
  line.config.batch.gradient_accumulation_steps = 4;
  validate(line.config, line.gpt, 2);
  line.config.batch.global_batch_size = 12;
  EXPECT_EQ(refusal([&] { validate(line.config, line.gpt, 2); }),
            "--global-batch-size (12) must equal gradient_accumulation_steps (4) x "
            "--micro-batch-size (3) x data-parallel size (2) = 24");
  line.config.batch.global_batch_size = 0;
  line.config.batch.gradient_accumulation_steps = INT32_MAX;
  EXPECT_THAT(refusal([&] { validate(line.config, line.gpt, 2); }), HasSubstr("is too large"));
}

TEST(Plan, ByIterations) {
  GptCommandLine line;
  line.read("--tensor-model-parallel-size 2 --micro-batch-size 2 --lr-warmup-iters 3");
  BatchPlan plan = plan_batches(line.config, 8);
  EXPECT_EQ(plan.dp, 4);
  EXPECT_EQ(plan.global_batch_size, 8);
  EXPECT_EQ(plan.num_microbatches, 1);
  EXPECT_EQ(plan.train_iters, 20);
  EXPECT_EQ(plan.lr_warmup_samples, 24);
  EXPECT_EQ(plan.lr_decay_samples, 160);
  line.config.batch.gradient_accumulation_steps = 3;
  EXPECT_EQ(plan_batches(line.config, 8).global_batch_size, 24);
  line.config.batch = {.micro_batch_size = 2, .global_batch_size = 32};
  line.config.schedule.lr_decay_iters = 10;
  plan = plan_batches(line.config, 8);
  EXPECT_EQ(plan.num_microbatches, 4);
  EXPECT_EQ(plan.lr_decay_samples, 320);
}

TEST(Plan, BySamples) {
  GptCommandLine line, other;
  line.read("--train-samples 100 --global-batch-size 8 --lr-warmup-fraction 0.125");
  BatchPlan plan = plan_batches(line.config, 2);
  EXPECT_EQ(plan.train_iters, 12);
  EXPECT_EQ(plan.lr_decay_samples, 100);
  EXPECT_EQ(plan.lr_warmup_samples, 12.5);
  other.read("--train-samples 100 --lr-warmup-samples 5 --lr-decay-samples 50");
  plan = plan_batches(other.config, 2);
  EXPECT_EQ(plan.lr_decay_samples, 50);
  EXPECT_EQ(plan.lr_warmup_samples, 5);
}

TEST(Plan, OneFolderHoweverItIsSpelt) {
  for (const char* load : {"runs/x", "./runs/x", "runs/x/", "runs//y/../x"})
    EXPECT_TRUE(goes_on_in_place({.save = "runs/x", .load = load})) << load;
  EXPECT_FALSE(goes_on_in_place({.save = "runs/x", .load = "runs/xy"}));
}

TEST(Plan, PaddedVocabulary) {
  EXPECT_EQ(padded_vocab_size({.vocab_size = 50257}, 1), 50304);
  EXPECT_EQ(padded_vocab_size({.vocab_size = 50257}, 8), 51200);
  EXPECT_EQ(padded_vocab_size({.vocab_size = 512}, 4), 512);
  EXPECT_EQ(padded_vocab_size({.make_vocab_size_divisible_by = 64, .vocab_size = 257}, 2), 384);
}

}  // namespace
}  // namespace anymesh
