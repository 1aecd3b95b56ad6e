#include "framework/data/gpt_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "framework/data/numpy_random.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

// Returns the values of a one- or two-dimensional .npy file, flat. The header line must name
// `type`.
template <class T>
std::vector<T> read_npy(const std::string& name, const std::string& type) {
  const std::string file = read_file(data_fixture("order/" + name + ".npy"));
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(file[8]) | static_cast<uint8_t>(file[9]) << 8;
  EXPECT_THAT(file.substr(10, header),
              HasSubstr("'descr': '" + type + "', 'fortran_order': False"));
  std::vector<T> values((file.size() - 10 - header) / sizeof(T));
  std::memcpy(values.data(), file.data() + 10 + header, values.size() * sizeof(T));
  return values;
}

std::vector<int64_t> flat(std::span<const GptDataset::Position> positions) {
  std::vector<int64_t> values;
  for (const auto& at : positions) values.insert(values.end(), {at.entry, at.offset});
  return values;
}

template <class T>
std::vector<T> copy(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(NumpyShuffle, EqualsRandomState) {
  std::vector<int> values(20);
  std::iota(values.begin(), values.end(), 0);
  std::mt19937 rng(1234);
  numpy_shuffle(std::span(values), rng);
  EXPECT_THAT(values,
              ElementsAre(3, 13, 2, 16, 14, 5, 4, 0, 8, 18, 17, 11, 10, 9, 7, 1, 19, 12, 6, 15));
  numpy_shuffle(std::span(values), rng);
  EXPECT_THAT(values,
              ElementsAre(8, 15, 9, 13, 14, 12, 7, 11, 18, 3, 0, 16, 17, 4, 2, 5, 10, 19, 6, 1));

  // RandomState(5489).randint(0, 2**32, 5)
  std::mt19937 raw(5489);
  for (const uint32_t expected : {3499211612u, 581869302u, 3890346734u, 3586334585u, 545404204u}) {
    EXPECT_EQ(numpy_interval(0xffffffff, raw), expected);
  }

  std::vector<int64_t> many(100000);
  std::iota(many.begin(), many.end(), 0);
  std::mt19937 one(1);
  numpy_shuffle(std::span(many), one);
  int64_t weighted = 0;
  for (int64_t i = 0; i < 100000; ++i) weighted += many[i] * (i + 1) % 1000003;
  EXPECT_EQ(weighted, 50122588731);
  EXPECT_THAT(std::vector(many.end() - 5, many.end()),
              ElementsAre(50057, 98047, 5192, 77708, 98539));
}

TEST(NumpyShuffle, LeavesShortRangesAlone) {
  std::mt19937 rng(1), same(1);
  std::vector<int> none, one{7};
  numpy_shuffle(std::span(none), rng);
  numpy_shuffle(std::span(one), rng);
  EXPECT_THAT(one, ElementsAre(7));
  EXPECT_EQ(rng, same);
}

TEST(GptDataset, IndicesEqualMegatrons) {
  const auto corpus = std::make_shared<IndexedDataset>(data_fixture("corpus_text_document"));
  const GptDataset data(corpus, split_documents("100,0,0", 83)[0], 160, 32, 1234, "train");
  const std::string name = "seed1234_seq32_160samples_";
  EXPECT_EQ(copy(data.document_order()), read_npy<int32_t>(name + "doc_idx", "<i4"));
  EXPECT_EQ(flat(data.positions()), read_npy<int64_t>(name + "sample_idx", "<i8"));
  EXPECT_EQ(copy(data.sample_order()), read_npy<uint32_t>(name + "shuffle_idx", "<u4"));
  EXPECT_EQ(data.size(), 9471);
}

TEST(GptDataset, IndicesEqualMegatronsOverSeveralEpochs) {
  const auto json = nlohmann::json::parse(read_file(data_fixture("order/small_cases.json")));
  ScratchFolder folder;
  IndexedDatasetBuilder builder(folder / "c", TokenType::kInt32);
  for (const int length : json["document_lengths"]) {
    // Only a token that is not counted makes a sequence of length 0.
    builder.add_document(std::vector<int32_t>(std::max(length, 1)), length);
  }
  builder.finish();
  const auto corpus = std::make_shared<IndexedDataset>(folder / "c");
  for (const auto& c : json["cases"]) {
    const GptDataset data(corpus, {c["first"], c["last"]}, c["num_samples"], c["seq_length"],
                          c["seed"], "train");
    EXPECT_EQ(copy(data.document_order()), c["doc_idx"].get<std::vector<int32_t>>()) << c;
    std::vector<int64_t> sample_idx;
    for (const auto& at : c["sample_idx"]) sample_idx.insert(sample_idx.end(), {at[0], at[1]});
    EXPECT_EQ(flat(data.positions()), sample_idx) << c;
    EXPECT_EQ(copy(data.sample_order()), c["shuffle_idx"].get<std::vector<uint32_t>>()) << c;
  }
}

TEST(GptDataset, SamplesAreConsecutiveTokensOfTheShuffledDocuments) {
  ScratchFolder folder;
  write_counting_corpus(folder / "c", {7, 1, 12, 5, 30, 3, 9});
  const auto corpus = std::make_shared<IndexedDataset>(folder / "c");
  const GptDataset data(corpus, {1, 6}, 40, 8, 99, "train");
  std::vector<int64_t> stream;
  for (const int32_t document : data.document_order()) {
    stream.resize(stream.size() + corpus->length(document));
    corpus->read(document, 0, std::span(stream).last(corpus->length(document)));
  }
  EXPECT_EQ(data.size(), (static_cast<int64_t>(stream.size()) - 1) / 8);
  EXPECT_GE(data.size(), 40);
  for (int64_t i = 0; i < data.size(); ++i) {
    const auto begin = stream.begin() + data.sample_order()[i] * 8;
    EXPECT_EQ(read_sample(data, i), std::vector(begin, begin + 9)) << i;
  }
}

TEST(GptDataset, RefusesTooLittleData) {
  ScratchFolder folder;
  write_counting_corpus(folder / "c", {5, 4});
  const auto corpus = std::make_shared<IndexedDataset>(folder / "c");
  const auto opening = [&](DocumentRange range, int64_t samples, int seq_length) {
    return message_of([&] { GptDataset(corpus, range, samples, seq_length, 1, "valid"); });
  };
  EXPECT_EQ(opening({0, 2}, 1, 8), "");
  EXPECT_EQ(opening({0, 2}, 0, 8), "");
  EXPECT_THAT(opening({0, 2}, 1, 9), HasSubstr("2 documents have 9 tokens, expected at least "
                                               "--seq-length (9) + 1"));
  EXPECT_THAT(opening({2, 2}, 1, 8), HasSubstr("valid data of " + (folder / "c") +
                                               ": --split leaves documents [2, 2) of 2"));
  EXPECT_THAT(opening({0, 3}, 1, 8), HasSubstr("documents [0, 3) of 2"));
  EXPECT_THAT(opening({-1, 2}, 1, 8), HasSubstr("documents [-1, 2) of 2"));
  EXPECT_THAT(opening({0, 2}, 1, 0), HasSubstr("--seq-length (0)"));
  EXPECT_THAT(opening({0, 2}, -1, 8), HasSubstr("-1 samples are wanted"));
  EXPECT_THAT(opening({0, 2}, int64_t{1} << 31, 8), HasSubstr("2147483648 samples are wanted"));
  EXPECT_THAT(opening({0, 2}, (int64_t{1} << 31) - 1, 8), HasSubstr("expected at most 2^31 - 1"));
}

TEST(GptDataset, RefusesSamplesItDoesNotHave) {
  ScratchFolder folder;
  write_counting_corpus(folder / "c", {9});
  const auto corpus = std::make_shared<IndexedDataset>(folder / "c");
  const GptDataset data(corpus, {0, 1}, 1, 8, 1, "test");
  std::vector<int64_t> tokens(9);
  EXPECT_REFUSES(data.sample(1, tokens), "test data: sample 1 was asked for, but there are only 1");
  EXPECT_REFUSES(data.sample(-1, tokens), "sample -1");
  tokens.resize(8);
  EXPECT_REFUSES(data.sample(0, tokens), "8 tokens was given");
}

TEST(SplitDocuments, EqualsMegatron) {
  struct Case {
    std::string split;
    int64_t documents;
    std::array<int64_t, 4> ends;
  };
  for (const Case& c : std::vector<Case>{
           {"969, 30, 1", 1, {0, 1, 1, 1}},
           {"969, 30, 1", 10, {0, 10, 10, 10}},
           {"969, 30, 1", 83, {0, 81, 83, 83}},
           {"969, 30, 1", 1000, {0, 969, 999, 1000}},
           {"100,0,0", 83, {0, 83, 83, 83}},
           {"1", 10, {0, 10, 10, 10}},
           {"98/1/1", 83, {0, 81, 82, 83}},
           {"98/1/1", 1000, {0, 980, 990, 1000}},
           {"1,1,1", 1, {0, 1, 1, 1}},
           {"1,1,1", 2, {0, 0, 1, 2}},
           {"1,1,1", 10, {0, 4, 7, 10}},
           {"1,1,1", 83, {0, 27, 55, 83}},
           {"0.5,0.5", 1, {0, 1, 1, 1}},
           {"0.5,0.5", 3, {0, 1, 3, 3}},
           {"0.5,0.5", 83, {0, 41, 83, 83}},
           {"90,5,5", 83, {0, 75, 79, 83}},
           {"90,5,5", 1000, {0, 900, 950, 1000}},
           {"8,1,1", 2, {0, 2, 2, 2}},
           {"8,1,1", 83, {0, 67, 75, 83}},
           {"0,0,1", 3, {0, 0, 0, 3}},
           {"0,1,1", 1, {0, 1, 1, 1}},
           {"0,1,1", 2, {0, 0, 1, 2}},
       }) {
    const auto ranges = split_documents(c.split, c.documents);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ranges[i], (DocumentRange{c.ends[i], c.ends[i + 1]}))
          << c.split << " of " << c.documents << ", part " << i;
    }
  }
}

TEST(SplitDocuments, RefusesWhatIsNoSplit) {
  for (const char* split : {"", ",", "a", "1,", "1,,1", "-1,2", "0,0,0", "1,1,1,1", "nan", "inf",
                            "1e308,1e308", "1,2x", "98/1,1", "1 2"}) {
    EXPECT_REFUSES(split_documents(split, 10),
                   "--split \"" + std::string(split) + "\": expected up to three weights");
  }
  // Megatron rounds this to [0, -1, 1, 3] and stops at an assertion.
  EXPECT_REFUSES(split_documents("0,1,1", 3), "cannot be rounded to 3");
}

TEST(SampleCounts, FollowTheTrainingLoop) {
  EXPECT_EQ(sample_counts(0, 20, 8, 1000, 10), (SampleCounts{160, 80}));
  EXPECT_EQ(sample_counts(0, 1000, 8, 100, 10), (SampleCounts{8000, 880}));
  EXPECT_EQ(sample_counts(0, 150, 2, 100, 0), (SampleCounts{300, 0}));
  EXPECT_EQ(sample_counts(250, 1000, 8, 100, 10), (SampleCounts{6000, 720}));
  EXPECT_EQ(sample_counts(9, 5, 8, 100, 10), (SampleCounts{0, 80}));
}

}  // namespace
}  // namespace anymesh
