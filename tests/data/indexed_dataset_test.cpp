#include "framework/data/indexed_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/data/data_files.h"

namespace anymesh {
namespace {

std::vector<int64_t> read_all(const IndexedDataset& data, int64_t sequence) {
  std::vector<int64_t> tokens(data.length(sequence));
  data.read(sequence, 0, tokens);
  return tokens;
}

template <class T>
void put(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// Three documents of 3, 0 and 2 tokens, as files in memory that a test may damage.
class DamagedIndex : public ::testing::Test {
 protected:
  DamagedIndex() {
    IndexedDatasetBuilder builder(prefix(), TokenType::kUint16);
    builder.add_document(std::vector<int32_t>{1, 2, 3});
    builder.add_document({});
    builder.add_document(std::vector<int32_t>{4, 65535});
    builder.finish();
    index = read_file(prefix() + ".idx");
  }

  std::string prefix() const { return folder / "corpus"; }

  std::string open_damaged() {
    write_file(prefix() + ".idx", index);
    return message_of([&] { IndexedDataset data(prefix()); });
  }

  ScratchFolder folder;
  std::string index;
};

TEST(IndexedDataset, ReadsWhatMegatronWrote) {
  const IndexedDataset data(data_fixture("corpus_text_document"));
  EXPECT_EQ(data.token_type(), TokenType::kUint16);
  EXPECT_EQ(data.size(), 83);
  EXPECT_EQ(data.length(0), 4000);
  EXPECT_EQ(data.length(2), 3358);
  int64_t tokens = 0;
  for (int64_t i = 0; i < data.size(); ++i) tokens += data.length(i);
  EXPECT_EQ(tokens, 303076);
  // The corpus begins with a line feed and 33 spaces: 198 and 220 in GPT-2's alphabet.
  const auto first = read_all(data, 0);
  EXPECT_EQ(first[0], 198);
  EXPECT_EQ(std::count(first.begin() + 1, first.begin() + 34, 220), 33);
}

TEST(IndexedDataset, ReadsPartsOfASequence) {
  ScratchFolder folder;
  write_counting_corpus(folder / "c", {5, 4});
  const IndexedDataset data(folder / "c");
  std::vector<int64_t> part(2);
  data.read(1, 2, part);
  EXPECT_EQ(part, (std::vector<int64_t>{7, 8}));
  EXPECT_REFUSES(data.read(1, 3, part), "2 tokens at 3 of sequence 1");
  EXPECT_REFUSES(data.read(0, -1, part), "2 tokens at -1");
  EXPECT_REFUSES(data.read(2, 0, part), "sequence 2 was asked for");
  EXPECT_REFUSES(data.read(-1, 0, part), "sequence -1");
}

TEST(IndexedDataset, RoundTripsEveryIntegerType) {
  ScratchFolder folder;
  const std::vector<int32_t> tokens{0, 1, 100, 127};
  for (const auto type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kInt32,
                          TokenType::kInt64, TokenType::kUint16}) {
    IndexedDatasetBuilder builder(folder / "c", type);
    builder.add_document(tokens);
    builder.finish();
    const IndexedDataset data(folder / "c");
    EXPECT_EQ(data.token_type(), type);
    EXPECT_EQ(read_all(data, 0), std::vector<int64_t>(tokens.begin(), tokens.end()));
    EXPECT_EQ(std::filesystem::file_size(folder / "c.bin"), tokens.size() * token_bytes(type));
  }
}

TEST_F(DamagedIndex, IntactItReads) {
  EXPECT_EQ(open_damaged(), "");
  const IndexedDataset data(prefix());
  EXPECT_EQ(data.size(), 2);  // the empty document is only an entry of the document index
  EXPECT_EQ(read_all(data, 1), (std::vector<int64_t>{4, 65535}));
}

TEST_F(DamagedIndex, FloatingPointTokensMustBeIntegers) {
  const auto reading = [&](TokenType type, const std::string& tokens) {
    put(index, 17, type);
    put<int32_t>(index, 34, tokens.size() / token_bytes(type));
    put<int32_t>(index, 38, 0);
    put<int64_t>(index, 50, tokens.size());
    write_file(prefix() + ".bin", tokens);
    return open_damaged();
  };
  const auto bytes_of = [](auto... values) {
    std::string bytes;
    (bytes.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
    return bytes;
  };
  ASSERT_EQ(reading(TokenType::kFloat32, bytes_of(3.0f, 50000.0f)), "");
  EXPECT_EQ(read_all(IndexedDataset(prefix()), 0), (std::vector<int64_t>{3, 50000}));
  ASSERT_EQ(reading(TokenType::kFloat64, bytes_of(4.0, 7.0)), "");
  EXPECT_EQ(read_all(IndexedDataset(prefix()), 0), (std::vector<int64_t>{4, 7}));
  for (const double bad : {0.5, 1e300, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    ASSERT_EQ(reading(TokenType::kFloat64, bytes_of(1.0, bad)), "");
    EXPECT_REFUSES(read_all(IndexedDataset(prefix()), 0), "corpus.bin: offset 8: token");
  }
}

TEST_F(DamagedIndex, EveryTruncationIsRefused) {
  const std::string whole = index;
  for (size_t size = 0; size < whole.size(); ++size) {
    index = whole.substr(0, size);
    EXPECT_THAT(open_damaged(), HasSubstr("corpus.idx")) << size;
  }
  index = whole + '\0';
  EXPECT_THAT(open_damaged(), HasSubstr("corpus.idx: offset 18"));
}

TEST_F(DamagedIndex, EveryFieldIsChecked) {
  // 34 lengths, 42 begins, 58 document index [0, 1, 1, 2].
  struct Case {
    size_t offset;
    int64_t value;
    int bytes;
    std::string expected;
  };
  const int64_t big = std::numeric_limits<int64_t>::max();
  for (const Case& c : std::vector<Case>{
           {0, 'X', 1, "offset 0: does not begin with MMIDIDX"},
           {8, 1, 1, "offset 0: does not begin with MMIDIDX"},
           {9, 2, 8, "offset 9: version 2, expected 1"},
           {17, 0, 1, "offset 17: token type 0"},
           {17, 9, 1, "offset 17: token type 9"},
           {17, 5, 1, "offset 42: sequence 0 of 3 tokens begins at byte 0"},
           {18, 3, 8, "offset 18: 3 sequences"},
           {18, big, 8, "offset 18"},
           {18, -1, 8, "offset 18"},
           {18, (int64_t{1} << 62) + 2, 8, "offset 18"},  // 12 times it wraps around to 24
           {26, 5, 8, "offset 18: 2 sequences and 5 document entries"},
           {26, (int64_t{1} << 61) + 4, 8, "offset 18"},
           {34, -1, 4, "offset 34: sequence 0 has length -1"},
           {34, 6, 4, "offset 42: sequence 0 of 6 tokens begins at byte 0"},
           {38, 1 << 30, 4, "offset 50: sequence 1 of 1073741824 tokens"},
           {34, 2, 4, "offset 50: sequence 1 begins at byte 6, expected 4, where"},
           {42, 2, 8, "offset 42: sequence 0 begins at byte 2, expected 0, where"},
           {42, -2, 8, "offset 42: sequence 0 of 3 tokens begins at byte -2"},
           {50, 8, 8, "offset 50: sequence 1 of 2 tokens begins at byte 8"},
           {50, big, 8, "offset 50: sequence 1"},
           {58, 1, 8, "offset 58: entry 0 of the document index is 1, expected 0 to 0"},
           {66, 3, 8, "offset 66: entry 1 of the document index is 3, expected 0 to 2"},
           {74, 0, 8, "offset 74: entry 2 of the document index is 0, expected 1 to 2"},
           {82, 1, 8, "offset 82: entry 3 of the document index is 1, expected 2 to 2"},
       }) {
    const std::string whole = index;
    std::memcpy(index.data() + c.offset, &c.value, c.bytes);
    EXPECT_THAT(open_damaged(), HasSubstr("corpus.idx: " + c.expected));
    index = whole;
  }
}

TEST_F(DamagedIndex, EveryFlippedByteIsRefusedOrReadable) {
  for (size_t at = 0; at < index.size(); ++at) {
    for (const int bit : {0, 7}) {
      index[at] ^= 1 << bit;
      if (open_damaged().empty()) {
        const IndexedDataset data(prefix());
        for (int64_t i = 0; i < data.size(); ++i) read_all(data, i);  // within bounds: asan watches
      }
      index[at] ^= 1 << bit;
    }
  }
}

TEST_F(DamagedIndex, AMissingOrShortBinIsRefused) {
  write_file(prefix() + ".bin", "123456789");  // one byte short
  EXPECT_THAT(open_damaged(), HasSubstr("corpus.bin, which has 9 bytes"));
  std::filesystem::remove(prefix() + ".bin");
  EXPECT_THAT(open_damaged(), HasSubstr("corpus.bin: cannot open: No such file"));
  std::filesystem::create_directory(prefix() + ".bin");
  EXPECT_THAT(open_damaged(), HasSubstr("corpus.bin: is a folder, expected a file"));
}

TEST_F(DamagedIndex, ABinMayEndWithATokenForEachDocumentAndNoMore) {
  const std::string tokens = read_file(prefix() + ".bin");
  for (const size_t more : {2, 4, 6}) {
    write_file(prefix() + ".bin", tokens + std::string(more, '\1'));
    EXPECT_EQ(open_damaged(), "") << more;
  }
  for (const size_t more : {1, 3, 7, 8, 100}) {
    write_file(prefix() + ".bin", tokens + std::string(more, '\1'));
    EXPECT_THAT(open_damaged(),
                HasSubstr("corpus.bin: has " + std::to_string(10 + more) + " bytes, but "))
        << more;
  }
}

// Puts the index of one tokenizer's run beside the tokens of another's. Every second token would be
// 0.
TEST(IndexedDataset, TokensOfAnotherWidthAreRefused) {
  ScratchFolder folder;
  for (const auto type : {TokenType::kInt32, TokenType::kUint16}) {
    IndexedDatasetBuilder builder(folder / (type == TokenType::kInt32 ? "wide" : "narrow"), type);
    for (int document = 0; document < 3; ++document)
      builder.add_document(std::vector<int32_t>{1, 2, 3, 4, 5}, 4);
    builder.finish();
  }
  std::filesystem::rename(folder / "narrow.idx", folder / "wide.idx");
  EXPECT_REFUSES(IndexedDataset data(folder / "wide"),
                 "wide.idx accounts for 24, 12 tokens of 2 bytes, and an end for each of "
                 "its 3 documents");
}

TEST(IndexedDataset, AnEmptyCorpusOpens) {
  ScratchFolder folder;
  IndexedDatasetBuilder(folder / "c", TokenType::kUint16).finish();
  EXPECT_EQ(IndexedDataset(folder / "c").size(), 0);
}

TEST(IndexedDatasetBuilder, NothingRemainsWithoutFinish) {
  ScratchFolder folder;
  write_counting_corpus(folder / "c", {3});
  const std::string before = read_file(folder / "c.idx") + read_file(folder / "c.bin");
  {
    IndexedDatasetBuilder builder(folder / "c", TokenType::kUint16);
    builder.add_document(std::vector<int32_t>{1});
    EXPECT_EQ(folder.files(), 3u);
  }
  EXPECT_EQ(folder.files(), 2u);
  EXPECT_EQ(read_file(folder / "c.idx") + read_file(folder / "c.bin"), before);
}

TEST(IndexedDatasetBuilder, RefusesWhatTheFilesCannotHold) {
  ScratchFolder folder;
  const auto adding = [&](TokenType type, std::vector<int32_t> tokens, int64_t length) {
    return message_of(
        [&] { IndexedDatasetBuilder(folder / "c", type).add_document(tokens, length); });
  };
  EXPECT_EQ(adding(TokenType::kUint16, {65535}, 1), "");
  EXPECT_THAT(adding(TokenType::kUint16, {65536}, 1), HasSubstr("token 65536 does not fit in 2"));
  EXPECT_THAT(adding(TokenType::kUint8, {-1}, 1), HasSubstr("token -1 does not fit in 1"));
  EXPECT_THAT(adding(TokenType::kInt32, {1, 2}, 3), HasSubstr("cannot have length 3"));
  EXPECT_THAT(adding(TokenType::kInt32, {1, 2}, -1), HasSubstr("cannot have length -1"));
  EXPECT_EQ(adding(TokenType::kFloat32, {1 << 24}, 1), "");
  EXPECT_THAT(adding(TokenType::kFloat32, {(1 << 24) + 1}, 1),
              HasSubstr("token 16777217 does not fit in 4"));
  EXPECT_REFUSES(IndexedDatasetBuilder b(folder / "no/c", TokenType::kInt32), "no/c.tmp");
}

TEST(IndexedDatasetBuilder, TokenTypeFollowsTheVocabulary) {
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::kUint16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::kInt32);
}

}  // namespace
}  // namespace anymesh
