#include "framework/run/tensorboard.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

class TensorBoardWriterTest : public TempFolder {
 protected:
  static std::string contents(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  // Returns the data of each record, after checking its frame by TFRecord's definition.
  static std::vector<std::string> records(const std::string& bytes) {
    const auto masked = [](uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; };
    std::vector<std::string> all;
    for (size_t at = 0; at < bytes.size();) {
      uint64_t size = 0;
      uint32_t crc = 0;
      EXPECT_LE(at + 16, bytes.size());
      std::memcpy(&size, &bytes[at], 8);
      std::memcpy(&crc, &bytes[at + 8], 4);
      EXPECT_EQ(crc, masked(crc_of(bytes.substr(at, 8))));
      if (size > bytes.size() - at - 16) throw std::runtime_error("half a record");
      all.push_back(bytes.substr(at + 12, size));
      std::memcpy(&crc, &bytes[at + 12 + size], 4);
      EXPECT_EQ(crc, masked(crc_of(all.back())));
      at += 16 + size;
    }
    return all;
  }
};

// The check value of the CRC catalogues, and two values of RFC 3720, B.4.
TEST(Crc32c, HasTheKnownValues) {
  EXPECT_EQ(crc_of("123456789"), 0xe3069283u);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc_of(""), 0u);
}

TEST_F(TensorBoardWriterTest, HoldsTheVersionTheStartAndTheScalars) {
  TensorBoardWriter file(folder_ / "new" / "logs", 301);
  EXPECT_THAT(file.path().filename(), StartsWith("events.out.tfevents.1"));
  ASSERT_TRUE(file.add(301, {{"lm loss", 2.5}, {"grad-norm", -1.0}}));
  const std::vector<std::string> data = records(contents(file.path()));
  ASSERT_EQ(data.size(), 3u);
  const size_t head = 9;  // 1: double wall_time
  for (const std::string& event : data) {
    double seconds = 0;
    ASSERT_EQ(event[0], '\x09');
    std::memcpy(&seconds, &event[1], 8);
    EXPECT_GT(seconds, 1.7e9);
  }
  EXPECT_EQ(data[0].substr(head), std::string("\x10\0\x1a\x0d", 4) + "brain.Event:2");
  // 301 = 0b10'0101101, seven bits a byte, the low ones first.
  EXPECT_EQ(data[1].substr(head),
            "\x10\xad\x02"
            "\x3a\x02"
            "\x08\x01");
  EXPECT_EQ(data[2].substr(head), std::string("\x10\xad\x02"
                                              "\x2a\x22",
                                              5) +
                                      std::string("\x0a\x0e\x0a\x07"
                                                  "lm loss"
                                                  "\x15\0\0\x20\x40",
                                                  16) +
                                      std::string("\x0a\x10\x0a\x09"
                                                  "grad-norm"
                                                  "\x15\0\0\x80\xbf",
                                                  18));
}

// A record that does not fit leaves whole records behind it, and later ones are written.
TEST_F(TensorBoardWriterTest, OutlivesAFullDisk) {
  TensorBoardWriter file(folder_, 1);
  ASSERT_TRUE(file.add(1, {{"lm loss", 3}}));
  const std::string before = contents(file.path());
  {
    const FileSizeLimit limit(before.size() + 20);
    EXPECT_FALSE(file.add(2, {{"lm loss", 2}}));
    EXPECT_EQ(errno, EFBIG);
  }
  EXPECT_EQ(contents(file.path()), before);
  EXPECT_TRUE(file.add(3, {{"lm loss", 1}}));
  EXPECT_EQ(records(contents(file.path())).size(), 4u);
}

TEST_F(TensorBoardWriterTest, NeverWritesToAFileThatIsThere) {
  TensorBoardWriter first(folder_, 1);
  const std::string before = contents(first.path());
  TensorBoardWriter second(folder_, 1);
  EXPECT_NE(first.path(), second.path());
  ASSERT_TRUE(second.add(1, {{"lm loss", 1}}));
  EXPECT_EQ(contents(first.path()), before);
}

TEST_F(TensorBoardWriterTest, NamesTheFolderThatCannotBe) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_REFUSES(TensorBoardWriter(folder_ / "file", 1), (folder_ / "file").string());
}

}  // namespace
}  // namespace anymesh
