// The file that keeps a large order of samples.
#include "framework/data/sample_order.h"

#include <algorithm>
#include <cstring>

#include "framework/data/gpt_dataset.h"
#include "framework/format/io.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr int kDocuments = 1'050'000;  // just enough for a file

class KeptOrder : public testing::Test {
 protected:
  KeptOrder() {
    IndexedDatasetBuilder builder(prefix_, TokenType::kUint8);
    for (int32_t i = 0; i < kDocuments; ++i) {
      const int32_t tokens[] = {i % 251, i % 7};
      builder.add_document(std::span(tokens).first(1 + i % 2));
    }
    builder.finish();
  }
  GptDataset dataset(uint32_t seed = 7, int64_t samples = 10) const {
    return {std::make_shared<const IndexedDataset>(prefix_),
            {0, kDocuments},
            samples,
            64,
            seed,
            "train"};
  }
  static void expect_same(const GptDataset& a, const GptDataset& b) {
    EXPECT_TRUE(std::ranges::equal(a.document_order(), b.document_order()));
    EXPECT_TRUE(std::ranges::equal(a.positions(), b.positions()));
    EXPECT_TRUE(std::ranges::equal(a.sample_order(), b.sample_order()));
    EXPECT_EQ(read_sample(a, 5), read_sample(b, 5));
  }

  ScratchFolder folder_;
  std::string prefix_ = folder_ / "text";
  fs::path file_ = prefix_ + ".train.7.order";
};

TEST_F(KeptOrder, IsTheOneInMemory) {
  fs::create_directories(file_ / "somebody's");
  const GptDataset in_memory = dataset();
  EXPECT_TRUE(fs::is_directory(file_));
  fs::remove_all(file_);
  const GptDataset first = dataset();
  ASSERT_TRUE(fs::is_regular_file(file_));
  const auto written = fs::last_write_time(file_);
  const GptDataset again = dataset();
  EXPECT_EQ(fs::last_write_time(file_), written);
  expect_same(in_memory, first);
  expect_same(in_memory, again);
  EXPECT_FALSE(std::ranges::equal(dataset(8).sample_order(), first.sample_order()));
  EXPECT_TRUE(fs::exists(prefix_ + ".train.8.order"));
}

TEST_F(KeptOrder, IsMadeAnewIfItIsAnothersOrDamaged) {
  const GptDataset first = dataset();
  const std::string whole = read_file(file_);
  for (const size_t at : {size_t{9}, size_t{70}, size_t{100}, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] ^= 16;
    write_file(file_, damaged);
    expect_same(first, dataset());
    EXPECT_TRUE(read_file(file_) == whole) << at;
  }
  write_file(file_, whole.substr(0, whole.size() / 2));
  expect_same(first, dataset());
  const GptDataset longer = dataset(7, 60'000);  // three epochs
  EXPECT_GT(read_file(file_).size(), whole.size());
  EXPECT_EQ(longer.document_order().size(), size_t{3} * kDocuments);
  expect_same(first, dataset());
  write_file(file_, "mine");
  expect_same(first, dataset());
  EXPECT_EQ(read_file(file_), "mine");
}

// Whatever the file says, no place outside the corpus is taken.
TEST_F(KeptOrder, IsMadeAnewIfItLeavesTheCorpus) {
  const GptDataset first = dataset();
  const std::string whole = read_file(file_);
  constexpr size_t kHeader = 80, kCrc = 72, kPositions = kHeader + 4 * size_t{kDocuments};
  for (const size_t at : {kHeader, kPositions, whole.size() - 4}) {
    std::string forged = whole;
    forged.replace(at, 4, "\xff\xff\xff\x7f");
    const uint32_t crc = crc32(std::as_bytes(std::span(forged)).subspan(kHeader));
    std::memcpy(forged.data() + kCrc, &crc, sizeof crc);
    fs::remove(file_);  // `first` has it mapped
    write_file(file_, forged);
    expect_same(first, dataset());
    EXPECT_TRUE(read_file(file_) == whole) << at;
  }
}

}  // namespace
}  // namespace anymesh
