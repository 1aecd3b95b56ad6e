#include "framework/data/batch_loader.h"

#include <cmath>
#include <set>

#include "framework/data/mock_dataset.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

// Sample i is the tokens 100 i, 100 i + 1, ...
class CountingDataset final : public Dataset {
 public:
  int64_t size() const override { return 1000; }
  int seq_length() const override { return 3; }
  void sample(int64_t index, std::span<int64_t> out) const override {
    check_request("counting", index, out);
    for (size_t i = 0; i < out.size(); ++i) out[i] = 100 * index + i;
  }
};

TEST(BatchLoader, LabelsAreTheTokensOnePositionLater) {
  const BatchSlice slice{.micro_batch_size = 2, .dp_size = 2, .dp_rank = 1};
  const TokenBatch batch = load_micro_batch(CountingDataset(), slice.samples(8, 1));
  EXPECT_THAT(batch.tokens, ElementsAre(1400, 1401, 1402, 1500, 1501, 1502));
  EXPECT_THAT(batch.labels, ElementsAre(1401, 1402, 1403, 1501, 1502, 1503));
}

TEST(BatchLoader, EveryMeshReadsTheSameGlobalBatchInOrder) {
  constexpr int64_t kGlobalBatch = 48, kConsumed = 96;
  for (const int64_t dp_size : {1, 2, 3, 4, 6}) {
    for (const int64_t micro_batch_size : {1, 2, 4}) {
      const int64_t run = dp_size * micro_batch_size;
      std::vector<int64_t> order;
      for (int64_t m = 0; m < kGlobalBatch / run; ++m) {
        for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
          const BatchSlice slice{micro_batch_size, dp_size, dp_rank};
          const auto batch = load_micro_batch(CountingDataset(), slice.samples(kConsumed, m));
          ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(3 * micro_batch_size));
          for (size_t i = 0; i < batch.tokens.size(); i += 3)
            order.push_back(batch.tokens[i] / 100);
        }
      }
      std::vector<int64_t> expected(kGlobalBatch);
      for (int64_t i = 0; i < kGlobalBatch; ++i) expected[i] = kConsumed + i;
      EXPECT_EQ(order, expected) << "dp " << dp_size << ", micro-batch " << micro_batch_size;
    }
  }
}

TEST(BatchLoader, RefusesToReadPastTheEnd) {
  const BatchSlice slice{.micro_batch_size = 2};
  EXPECT_REFUSES(load_micro_batch(CountingDataset(), slice.samples(999, 0)),
                 "sample 1000 was asked for, but there are only 1000");
}

TEST(MockDataset, IsAFunctionOfSeedSampleAndPosition) {
  const MockDataset data(1000, 15, 512, 1234), longer(10, 31, 512, 1234),
      other(1000, 15, 512, 1235);
  const auto tokens = read_sample(data, 7);
  EXPECT_EQ(read_sample(MockDataset(1000, 15, 512, 1234), 7), tokens);
  auto prefix = read_sample(longer, 7);
  prefix.resize(16);
  EXPECT_EQ(prefix, tokens);
  EXPECT_NE(read_sample(other, 7), tokens);
  EXPECT_NE(read_sample(data, 8), tokens);
  EXPECT_EQ(std::vector(tokens.begin(), tokens.begin() + 8),
            (std::vector<int64_t>{56, 304, 8, 64, 80, 424, 96, 504}));
}

TEST(MockDataset, SpreadsItsSymbolsOverTheVocabulary) {
  for (const int64_t vocab_size : {2, 50, 64, 512, 50257}) {
    const MockDataset data(200, 64, vocab_size, 1);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < data.size(); ++i) {
      for (const int64_t token : read_sample(data, i)) seen.insert(token);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), std::min<int64_t>(vocab_size, 64));
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), vocab_size);
    EXPECT_GE(*seen.rbegin(), vocab_size * 63 / 64 - 64);
  }
}

TEST(MockDataset, CanBeLearnedDownToItsFloor) {
  const MockDataset data(2000, 100, 64, 1);
  std::vector<std::vector<double>> pairs(64, std::vector<double>(64));
  for (int64_t i = 0; i < data.size(); ++i) {
    const auto tokens = read_sample(data, i);
    for (size_t p = 1; p < tokens.size(); ++p) ++pairs[tokens[p - 1]][tokens[p]];
  }
  double entropy = 0;
  for (const auto& row : pairs) {
    double total = 0;
    for (const double count : row) total += count;
    for (const double count : row) {
      if (count > 0) entropy -= count / 200000 * std::log(count / total);
    }
  }
  // The entropy of the next token given this one: it is the successor, or one of 63 others.
  const double other = 1.0 / 8 / 64, follow = 7.0 / 8 + other;
  const double floor_loss = -follow * std::log(follow) - 63 * other * std::log(other);
  EXPECT_NEAR(floor_loss, 0.8828, 1e-4);
  EXPECT_NEAR(entropy, floor_loss, 0.02);
}

TEST(MockDataset, RefusesWhatItCannotBe) {
  EXPECT_THROW(MockDataset(1, 8, 1, 0), std::runtime_error);
  EXPECT_THROW(MockDataset(1, 0, 8, 0), std::runtime_error);
  EXPECT_THROW(MockDataset(-1, 8, 8, 0), std::runtime_error);
  EXPECT_REFUSES(read_sample(MockDataset(3, 8, 8, 0), 3),
                 "mock data: sample 3 was asked for, but there are only 3");
}

}  // namespace
}  // namespace anymesh
