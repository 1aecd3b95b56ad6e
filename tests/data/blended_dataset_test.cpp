#include "framework/data/blended_dataset.h"

#include <memory>

#include "framework/data/gpt_corpora.h"
#include "framework/data/mock_dataset.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

// Applies the rule as Megatron states it, in one pass over all samples.
std::vector<BlendOrder::Source> greedy(const std::vector<double>& weights, int64_t size) {
  std::vector<BlendOrder::Source> order;
  std::vector<int64_t> given(weights.size());
  for (int64_t i = 0; i < size; ++i) {
    size_t best = 0;
    const auto behind = [&](size_t d) {
      return weights[d] * std::max(static_cast<double>(i), 1.0) - static_cast<double>(given[d]);
    };
    for (size_t d = 1; d < weights.size(); ++d) {
      if (behind(d) > behind(best)) best = d;
    }
    order.push_back({static_cast<int64_t>(best), given[best]++});
  }
  return order;
}

TEST(BlendOrder, TakesWhatIsFurthestBehind) {
  const BlendOrder order(normalized(std::vector{0.7, 0.3}), 7);
  std::vector<int64_t> datasets, samples;
  for (int64_t i = 0; i < order.size(); ++i) {
    datasets.push_back(order.at(i).dataset);
    samples.push_back(order.at(i).sample);
  }
  EXPECT_THAT(datasets, ElementsAre(0, 1, 0, 0, 1, 0, 0));
  EXPECT_THAT(samples, ElementsAre(0, 0, 1, 2, 1, 3, 4));
  EXPECT_EQ(order.count(0), 5);
  EXPECT_EQ(order.count(1), 2);
}

TEST(BlendOrder, IsTheSameFromAnyNote) {
  for (const auto& weights : std::vector<std::vector<double>>{
           {1}, {1, 1}, {2, 3, 5}, {1e-6, 1, 1e3}, {0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.7, 1.9, 0.1}}) {
    const std::vector<double> shares = normalized(weights);
    for (const int64_t size : {0, 1, 511, 512, 513, 3000}) {
      const BlendOrder order(shares, size);
      const auto expected = greedy(shares, size);
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(order.at(i), expected[i]) << i;
    }
  }
}

TEST(BlendOrder, NeverTakesMoreThanTheShareRoundedUp) {
  for (const auto& weights :
       std::vector<std::vector<double>>{{1, 1}, {1, 2, 4}, {0.999, 0.001}, {3, 1, 3, 1, 3, 1, 9}}) {
    const std::vector<double> shares = normalized(weights);
    for (int64_t size = 1; size < 2000; size += 37) {
      const BlendOrder order(shares, size);
      for (size_t d = 0; d < shares.size(); ++d) {
        EXPECT_LE(order.count(d), samples_of_share(shares[d], size)) << size;
      }
    }
  }
}

// numpy: w = numpy.arange(11); w = (w * w % 17 + 1) / 10; w /= w.sum(); w /= w.sum()
TEST(Normalized, EqualsNumpyWhereAPlainSumDoesNot) {
  std::vector<double> weights(11);
  for (int i = 0; i < 11; ++i) weights[i] = (i * i % 17 + 1) / 10.0;
  const std::vector<double> shares = normalized(weights);
  EXPECT_EQ(shares[0], 0.009345794392523366);
  EXPECT_EQ(shares[5], 0.08411214953271029);
  EXPECT_EQ(shares[10], 0.14953271028037385);
}

TEST(ParseBlend, TakesPrefixesWithOrWithoutWeights) {
  EXPECT_THAT(parse_blend({"a"}).prefixes, ElementsAre("a"));
  EXPECT_THAT(parse_blend({"7"}).prefixes, ElementsAre("7"));  // alone it is no weight
  EXPECT_THAT(parse_blend({"a", "b"}).prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(parse_blend({"a", "b"}).weights, ElementsAre());
  const Blend blend = parse_blend({"30", "a b", "7e1", "c"});
  EXPECT_THAT(blend.prefixes, ElementsAre("a b", "c"));
  EXPECT_THAT(blend.weights, ElementsAre(30, 70));
}

TEST(ParseBlend, RefusesWhatIsNoBlend) {
  const auto refusal = [](const std::vector<std::string>& values) {
    return message_of([&] { parse_blend(values); });
  };
  EXPECT_THAT(refusal({"0.3", "a", "0.7"}),
              HasSubstr("--data-path 0.3 a 0.7: expected WEIGHT PREFIX WEIGHT PREFIX..."));
  EXPECT_THAT(refusal({"0.3", "a", "b", "c"}), HasSubstr("or prefixes without any weight"));
  EXPECT_THAT(refusal({"1", "a", "0", "b"}), HasSubstr("the weight 0: expected a number above 0"));
  for (const char* weight : {"-1", "nan", "inf", "1e308"}) {
    EXPECT_THAT(refusal({"1e308", "a", weight, "b"}), HasSubstr("--data-path 1e308 a "));
  }
}

TEST(BlendedDataset, ReadsTheSamplesOfItsParts) {
  std::vector<std::unique_ptr<Dataset>> datasets;
  for (const int seed : {1, 2}) {
    datasets.push_back(std::make_unique<MockDataset>(700, 8, 50, seed));
  }
  const MockDataset parts[] = {{700, 8, 50, 1}, {700, 8, 50, 2}};
  const std::vector<double> weights = {3, 1};
  const BlendedDataset data(std::move(datasets), weights, 900, "train");
  const auto order = greedy(normalized(weights), 900);
  for (const int64_t i : {0, 1, 2, 3, 511, 512, 513, 899, 4}) {  // in any order
    EXPECT_EQ(read_sample(data, i), read_sample(parts[order[i].dataset], order[i].sample)) << i;
  }
  EXPECT_EQ(data.size(), 900);
  EXPECT_REFUSES(read_sample(data, 900), "there are only 900");
}

TEST(BlendedDataset, RefusesDataSetsThatAreTooSmall) {
  std::vector<std::unique_ptr<Dataset>> datasets;
  datasets.push_back(std::make_unique<MockDataset>(50, 8, 50, 1));
  datasets.push_back(std::make_unique<MockDataset>(20, 8, 50, 2));
  EXPECT_REFUSES(BlendedDataset(std::move(datasets), std::vector{1.0, 1.0}, 50, "valid"),
                 "valid data: the blend takes 25 samples of data set 2 of --data-path, "
                 "which has 20");
}

class GptCorporaTest : public ::testing::Test {
 protected:
  GptCorporaTest() {
    write_counting_corpus(a_, std::vector<int>(40, 9));
    write_counting_corpus(b_, std::vector<int>(30, 11));
  }

  GptCorpora open(const std::vector<std::string>& data_path, const std::string& split = "8,2,0") {
    return GptCorpora(data_path, split, 8, 1234);
  }

  ScratchFolder folder_;
  const std::string a_ = folder_ / "a", b_ = folder_ / "b";
};

TEST_F(GptCorporaTest, BlendsByWeightsAndRepeats) {
  const auto train = open({"3", a_, "1", b_}).part(0, {400}, "train");
  EXPECT_EQ(train->size(), 400);
  const std::vector<double> shares = normalized(std::vector{3.0, 1.0});
  const auto order = greedy(shares, 400);
  const std::vector<std::unique_ptr<Dataset>> parts = [&] {
    std::vector<std::unique_ptr<Dataset>> made;
    made.push_back(open({a_}).part(0, {302}, "a"));  // ceil(300 * 1.005)
    made.push_back(open({b_}).part(0, {101}, "b"));
    return made;
  }();
  for (int64_t i = 0; i < 400; ++i) {
    ASSERT_EQ(read_sample(*train, i), read_sample(*parts[order[i].dataset], order[i].sample)) << i;
  }
}

TEST_F(GptCorporaTest, WithoutWeightsReadsEverythingOnce) {
  const GptCorpora corpora = open({a_, b_, a_}, "1");
  const auto once = corpora.part(0, {129}, "train");  // 44 + 41 + 44
  EXPECT_EQ(once->size(), 129);
  EXPECT_REFUSES(corpora.part(0, {130}, "train"),
                 "train data: --data-path without weights reads every data set once, which "
                 "gives 129 samples of --seq-length (8), but the run needs 130");
}

// A run that is extended reads what it would have read, and then another shuffle.
TEST_F(GptCorporaTest, AnExtendedRunKeepsItsOrder) {
  for (const auto& data_path : {std::vector<std::string>{a_}, {"3", a_, "1", b_}}) {
    const GptCorpora corpora = open(data_path);
    const auto first = corpora.part(0, {100}, "train"),
               longer = corpora.part(0, {100, 60}, "train"),
               other = corpora.part(0, {160}, "train");
    ASSERT_GE(longer->size(), 160);
    int differ = 0;
    for (int64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(read_sample(*longer, i), read_sample(*first, i)) << i;
      differ += read_sample(*other, i) != read_sample(*first, i) ? 1 : 0;
    }
    EXPECT_GT(differ, 50);  // so a run prepared for 160 samples could not go on
    std::set<std::vector<int64_t>> more;
    for (int64_t i = 100; i < 160; ++i) more.insert(read_sample(*longer, i));
    EXPECT_GT(more.size(), 30);
  }
}

TEST_F(GptCorporaTest, DescribesWhatDecidesItsOrder) {
  using Facts = std::vector<std::pair<std::string, std::string>>;
  const auto differing = [&](const Facts& other) {
    const Facts ours = open({"3", a_, "1", b_}).describe();
    std::vector<std::string> flags;
    for (size_t i = 0; i < ours.size(); ++i)
      if (ours[i] != other[i]) flags.push_back(ours[i].first);
    return flags;
  };
  const std::string copy = folder_ / "copy";
  for (const std::string suffix : {".bin", ".idx"})
    std::filesystem::copy_file(a_ + suffix, copy + suffix);
  EXPECT_THAT(differing(open({"3", copy, "1", b_}).describe()), ElementsAre());
  EXPECT_THAT(differing(open({"2", a_, "1", b_}).describe()), ElementsAre("--data-path"));
  EXPECT_THAT(differing(open({"3", b_, "1", a_}).describe()),
              ElementsAre("--data-path", "--split"));
  EXPECT_THAT(differing(open({"3", a_, "1", b_}, "7,3,0").describe()), ElementsAre("--split"));
  EXPECT_THAT(differing(GptCorpora({"3", a_, "1", b_}, "8,2,0", 7, 1).describe()),
              ElementsAre("--seq-length", "--seed"));
  std::fstream(copy + ".bin", std::ios::in | std::ios::out | std::ios::binary).put('\x7f');
  EXPECT_THAT(differing(open({"3", copy, "1", b_}).describe()), ElementsAre("--data-path"));
}

TEST_F(GptCorporaTest, CutsEveryDataSetAlike) {
  const GptCorpora corpora = open({"1", a_, "1", b_});
  EXPECT_EQ(corpora.documents(0), 32 + 24);
  EXPECT_EQ(corpora.documents(1), 8 + 6);
  EXPECT_EQ(corpora.documents(2), 0);
  EXPECT_EQ(corpora.part(1, {30}, "valid")->size(), 30);
  write_counting_corpus(folder_ / "tiny", {9, 9});
  EXPECT_REFUSES(open({"1", a_, "1", folder_ / "tiny"}).part(1, {9}, "valid"),
                 "tiny: --split leaves documents [2, 2) of 2");
}

TEST_F(GptCorporaTest, APrefixThatIsNoneIsAnsweredWithTheOneThatWorks) {
  write_counting_corpus(folder_ / "books_text_document", {9, 9});
  write_file(folder_ / "books.jsonl", "{}");
  const auto refusal = [&](const std::string& prefix) {
    return message_of([&] { open({prefix}); });
  };
  const std::string books = folder_ / "books_text_document";
  for (const std::string ending : {".bin", ".idx"})
    EXPECT_THAT(refusal(books + ending), HasSubstr("give its prefix, --data-path " + books));
  EXPECT_THAT(refusal(folder_ / "books"), HasSubstr("books.idx; there is --data-path " + books));
  EXPECT_THAT(refusal(folder_ / "books.jsonl"),
              HasSubstr("of the files that preprocess_data makes"));
  EXPECT_THAT(refusal("0.7 " + a_ + " 0.3 " + b_),
              HasSubstr("without quotes: --data-path 0.7 " + a_ + " 0.3 " + b_));
  EXPECT_THAT(refusal(folder_ / "other"), HasSubstr("other.idx: cannot open: No such file"));
  EXPECT_THAT(refusal("no/such"), HasSubstr("no/such.idx: cannot open: No such file"));
}

}  // namespace
}  // namespace anymesh
