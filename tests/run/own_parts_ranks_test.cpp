// The data and the metrics that a program brings, on several meshes.
#include <ATen/Functions.h>

#include <cmath>

#include "framework/comm/agreement.h"
#include "framework/data/mock_dataset.h"
#include "framework/run/metrics.h"
#include "framework/run/micro_batches.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr Topology kOwnMeshes[] = {
    {.dp_size = 4}, {.pp_size = 2, .dp_size = 2}, {.dp_size = 2, .tp_size = 2}, {.pp_size = 4}};

// Sample i is a picture of i, with the label -i.
struct Pictures : SampleSource {
  int64_t size() const override { return 1000; }
  MicroBatch batch(std::span<const int64_t> samples) const override {
    const torch::Tensor numbers = to_tensor(samples);
    return {.inputs = numbers.to(torch::kFloat).view({-1, 1, 1, 1}).expand({-1, 3, 2, 2}),
            .labels = -numbers};
  }
};

RANKS_TEST(OwnData, IsDealtLikeTokens) {
  for (const Topology& mesh : kOwnMeshes) {
    const ProcessGrid grid(test_world(), mesh);
    const int64_t rows = 2, count = 3, first = 40;
    const auto batches = micro_batches(Pictures(), grid, rows, first, count, /*dropout_seed=*/7);
    ASSERT_EQ(std::ssize(batches), count);
    for (int64_t m = 0; m < count; ++m) {
      const MicroBatch& batch = batches[static_cast<size_t>(m)];
      const int64_t sample = first + (m * mesh.dp_size + grid.coord.dp) * rows;
      EXPECT_EQ(batch.dropout.samples, (std::vector<int64_t>{sample, sample + 1}));
      if (!grid.is_first_stage() && !grid.is_last_stage()) {
        EXPECT_FALSE(batch.inputs.defined() || batch.labels.defined());
        continue;
      }
      EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{rows, 3, 2, 2}));
      for (int64_t row = 0; row < rows; ++row) {
        EXPECT_EQ(batch.inputs[row].sum().item<int64_t>(), 12 * (sample + row));
        EXPECT_EQ(batch.labels[row].item<int64_t>(), -sample - row);
      }
    }
  }
}

RANKS_TEST(OwnData, OfAnotherNumberOfRowsIsRefused) {
  struct : Pictures {
    MicroBatch batch(std::span<const int64_t> samples) const override {
      return Pictures::batch(samples.first(1));
    }
  } pictures;
  const ProcessGrid grid(test_world(), {.dp_size = 4});
  EXPECT_REFUSES(micro_batches(pictures, grid, 2, 0, 1, {}),
                 "the data set gave inputs of shape [1, 3, 2, 2], expected 2 rows for as many "
                 "samples (--micro-batch-size)");
}

RANKS_TEST(OwnData, OfTokensIsCheckedAgainstTheVocabulary) {
  const auto tokens = std::make_shared<MockDataset>(10, 8, 50, 1);
  const std::vector<int64_t> samples{3, 9};
  const MicroBatch all = TokenSource(tokens, 50).batch(samples);
  EXPECT_EQ(all.inputs.sizes(), (std::vector<int64_t>{2, 8}));
  EXPECT_TRUE(at::equal(all.inputs.slice(1, 1), all.labels.slice(1, 0, -1)));
  EXPECT_THAT(message_of([&] { TokenSource(tokens, 1, "; see me").batch(samples); }),
              testing::MatchesRegex("sample 3 has token [0-9]+, the vocabulary has 1; see me"));
}

RANKS_TEST(Metrics, AreTheMeanOfTheLastStages) {
  for (const Topology& mesh : kOwnMeshes) {
    const ProcessGrid grid(test_world(), mesh);
    const double place = grid.coord.dp + 1;
    const Metrics mine = grid.is_last_stage()
                             ? Metrics{{"place", place}, {"unknown", NAN}, {"seven", 7}}
                             : Metrics{{"of another stage", 1}};
    const Metrics mean = mean_of_metrics(grid, mine, "a test");
    ASSERT_EQ(mean.size(), 3u);
    EXPECT_EQ(mean[0], Metrics::value_type("place", (mesh.dp_size + 1) / 2.0));
    EXPECT_TRUE(std::isnan(mean[1].second));
    EXPECT_EQ(in_order(mean, {"seven", "place", "unknown"}, "a test")[0], mean[2]);
    EXPECT_REFUSES(in_order(mean, {"place", "time"}, "step 3"),
                   "step 3 gave the metrics \"place, unknown, seven\", expected \"place, time\" "
                   "(TrainingProgram::metrics)");
    EXPECT_TRUE(mean_of_metrics(grid, {}, "a test").empty());
  }
}

RANKS_TEST(Metrics, OfTheSameNamesAreRequiredOfAllRanks) {
  const ProcessGrid grid(test_world(), {.dp_size = 4});
  const Metrics mine{{grid.coord.dp == 2 ? "perplexity" : "accuracy", 1}};
  EXPECT_REFUSES(mean_of_metrics(grid, mine, "on_step at iteration 3"),
                 "[rank 2] the metrics of on_step at iteration 3 is perplexity, but on rank 0 ",
                 " is accuracy");
}

RANKS_TEST(Metrics, HaveNamesThatACsvCanHold) {
  EXPECT_NO_THROW(check_names({"accuracy", "top 5"}, {"lm_loss"}));
  for (const char* name : {"", "a,b", "a\nb", "\"a\"", "lm_loss", "twice"})
    EXPECT_THROW(check_names({"twice", name}, {"lm_loss"}), std::logic_error) << name;
}

}  // namespace
}  // namespace anymesh
