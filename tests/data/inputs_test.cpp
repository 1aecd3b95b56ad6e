
#include <algorithm>

#include "framework/data/inputs/document_reader.h"
#include "framework/data/inputs/input_list.h"
#include "framework/util/memory_sizes.h"
#include "tests/data/compressed.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

class Inputs : public ::testing::Test {
 protected:
  std::string path(const std::string& bytes) {
    write_file(folder / "a.txt", bytes);
    return folder / "a.txt";
  }
  std::string text(const std::string& bytes) {
    const auto stream = open_text(path(bytes));
    std::string all;
    for (std::string_view piece; !(piece = stream->next()).empty();) all += piece;
    EXPECT_EQ(stream->file_bytes(), static_cast<int64_t>(bytes.size()));
    return all;
  }

  ScratchFolder folder;
};

// Lengths around those of the buffers, where output is held back.
TEST_F(Inputs, AreUnpackedAtAnyLength) {
  std::string all;
  for (uint32_t i = 0; all.size() < 1'000'000; ++i) all += std::to_string(i * 2654435761u) + " ";
  for (const size_t length : {0, 1, 131071, 131072, 131073, 262143, 262144, 262145, 524288, 999999})
    for (const std::string& bytes : {all.substr(0, length), std::string(length, 'a')}) {
      EXPECT_TRUE(text(bytes) == bytes) << length;
      EXPECT_TRUE(text(gzipped(bytes)) == bytes) << length;
      EXPECT_TRUE(text(zstd_frame(bytes)) == bytes) << length;
    }
}

TEST_F(Inputs, AreRefusedWhereverTheyAreCutOff) {
  for (const std::string& packed : {gzipped("a text"), zstd_frame("a text")})
    for (size_t length = 4; length < packed.size(); ++length)
      EXPECT_REFUSES(text(packed.substr(0, length)),
                     "a.txt: is cut off at byte " + std::to_string(length));
}

// A flipped bit of the text never passes. The few that are of no consequence, as the time in gzip's
// header, leave it as it is.
TEST_F(Inputs, AreNeverReadWrong) {
  const std::string expected = "some text, some more text, and some numbers: 12345678901234567890";
  for (const std::string& packed : {gzipped(expected), zstd_frame(expected)}) {
    int refused = 0;
    for (size_t bit = 32; bit < 8 * packed.size(); ++bit) {
      std::string flipped = packed;
      flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
      try {
        EXPECT_EQ(text(flipped), expected) << bit;
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr(" at byte "));
        ++refused;
      }
    }
    EXPECT_GT(refused, static_cast<int>(6 * expected.size()));
  }
}

TEST_F(Inputs, SayWhatFollowsAMember) {
  EXPECT_REFUSES(text(gzipped("a") + "garbage"), "damaged gzip data at byte ");
  EXPECT_REFUSES(text(zstd_frame("a") + "garbage"), "damaged zstd data at byte ");
}

// 256 MB of text, packed in less than 1 MB.
TEST_F(Inputs, TakeNoMoreMemoryIfTheyAreLonger) {
  const std::string megabyte(1 << 20, 'a');
  for (const std::string& packed : {gzipped(megabyte), zstd_frame(megabyte)}) {
    std::string all;
    for (int i = 0; i < 256; ++i) all += packed;
    const auto stream = open_text(path(all));
    const int64_t before = peak_memory();
    size_t bytes = 0;
    for (std::string_view piece; !(piece = stream->next()).empty();) bytes += piece.size();
    EXPECT_EQ(bytes, megabyte.size() * 256);
    EXPECT_LT(peak_memory() - before, 16 << 20);
  }
}

TEST_F(Inputs, AreCutIntoDocumentsWithTheirLines) {
  write_file(folder / "a.txt", "one\n\ntwo");
  write_file(folder / "b.txt", zstd_frame("\nthree\nfour"));
  DocumentReader reader({folder / "a.txt", folder / "b.txt"}, DocumentUnit::kLine);
  DocumentReader::Batch batch;
  ASSERT_TRUE(reader.read(batch));
  ASSERT_EQ(batch.documents.size(), 4u);
  const std::tuple<std::string, size_t, int64_t> expected[] = {
      {"one", 0, 1}, {"two", 0, 3}, {"three", 1, 2}, {"four", 1, 3}};
  for (size_t i = 0; i < 4; ++i) {
    const auto& [text, input, line, too_long] = batch.documents[i];
    EXPECT_EQ(std::tuple(text, input, line), expected[i]);
    EXPECT_FALSE(too_long);
  }
  const auto size = size_on_disk({folder / "a.txt", folder / "b.txt"});
  EXPECT_EQ(batch.file_bytes, static_cast<int64_t>(size.value()));
  EXPECT_EQ(batch.bytes, 19);
  EXPECT_FALSE(reader.read(batch));
  EXPECT_EQ(size_on_disk({folder / "a.txt", "/dev/null"}), std::nullopt);
}

TEST_F(Inputs, AreExpandedInOrder) {
  for (const char* name : {"b.txt", "a.txt", "c[1].txt"}) write_file(folder / name, "");
  const std::vector<std::string> expected = {folder / "c[1].txt", folder / "a.txt",
                                             folder / "b.txt", "-"};
  EXPECT_EQ(expand_inputs({folder / "c[1].txt", folder / "[ab].txt", "-"}), expected);
}

}  // namespace
}  // namespace anymesh
