#include "tools/generate/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

// Probabilities 0.5, 0.25, 0.15 and 0.1, not in that order.
const std::vector<float> kLogits = {std::log(0.15f), std::log(0.5f), std::log(0.1f),
                                    std::log(0.25f)};

// Returns how often each token came in so many draws, in parts of one.
std::map<int32_t, double> frequencies(const SamplingOptions& options, int draws = 20000) {
  Sampler sampler(options);
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i) counts[sampler.next(kLogits)] += 1.0 / draws;
  return counts;
}

void expect_near(const std::map<int32_t, double>& found,
                 const std::map<int32_t, double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, probability] : expected)
    EXPECT_NEAR(found.contains(token) ? found.at(token) : 0, probability, 0.015) << token;
}

TEST(Sampler, DrawsWithTheModelsProbabilities) {
  expect_near(frequencies({}), {{0, 0.15}, {1, 0.5}, {2, 0.1}, {3, 0.25}});
}

TEST(Sampler, TemperatureDividesTheLogits) {
  // Squares of the probabilities: 0.25, 0.0625, 0.0225 and 0.01 of 0.345.
  expect_near(frequencies({.temperature = 0.5}),
              {{0, 0.0225 / 0.345}, {1, 0.25 / 0.345}, {2, 0.01 / 0.345}, {3, 0.0625 / 0.345}});
}

TEST(Sampler, ZeroTakesTheLikeliestAndTheFirstOfEquals) {
  Sampler sampler({.temperature = 0});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.next(kLogits), 1);
  EXPECT_EQ(sampler.next(std::vector<float>{0, 2, 2, 1}), 1);
}

TEST(Sampler, TopKLeavesTheLikeliest) {
  expect_near(frequencies({.top_k = 1}), {{1, 1.0}});
  expect_near(frequencies({.top_k = 2}), {{1, 2.0 / 3}, {3, 1.0 / 3}});
  expect_near(frequencies({.top_k = 9}), frequencies({}));
}

TEST(Sampler, TopPLeavesTheFewestThatReachIt) {
  expect_near(frequencies({.top_p = 0.4}), {{1, 1.0}});
  expect_near(frequencies({.top_p = 0.6}), {{1, 2.0 / 3}, {3, 1.0 / 3}});
  expect_near(frequencies({.top_p = 0.8}), {{0, 0.15 / 0.9}, {1, 0.5 / 0.9}, {3, 0.25 / 0.9}});
  expect_near(frequencies({.top_p = 1}), frequencies({}));
  // top_k leaves two tokens, and the first has 2/3.
  expect_near(frequencies({.top_k = 2, .top_p = 0.6}), {{1, 1.0}});
}

TEST(Sampler, TheSeedDecides) {
  const auto drawn = [](uint64_t seed) {
    Sampler sampler({.seed = seed});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 64; ++i) tokens.push_back(sampler.next(kLogits));
    return tokens;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY})
    for (const double temperature : {0.0, 1.0}) {
      Sampler sampler({.temperature = temperature});
      const std::string message = message_of([&] { sampler.next(std::vector<float>{0, bad, 1}); });
      EXPECT_THAT(message, HasSubstr("not finite"));
    }
}

TEST(Sampler, RefusesOptionsByTheirFlags) {
  const std::pair<SamplingOptions, const char*> cases[] = {
      {{.temperature = -1}, "--temperature (-1) must not be negative"},
      {{.top_k = -1}, "--top_k (-1) must not be negative"},
      {{.top_p = 1.5}, "--top_p (1.5) must be in [0, 1]"},
      {{.temperature = 0, .top_k = 3}, "whatever --top_k and --top_p are"}};
  for (const auto& [options, expected] : cases) {
    const std::string message = message_of([&, o = options] { validate(o); });
    EXPECT_THAT(message, HasSubstr(expected));
  }
  validate(SamplingOptions{});
}

}  // namespace
}  // namespace anymesh
