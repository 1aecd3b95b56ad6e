#include "framework/format/torch_file/zip.h"

#include <algorithm>

#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/zip_format.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

class Zip : public TempFolder {
 protected:
  fs::path path_ = folder_ / "t.zip";

  std::string write_two() {
    write_zip(path_, {{"t/first", "hello"}, {"t/empty", ""}, {"t/second", "abcdef"}});
    return read_file(path_);
  }

  std::string message_for(const std::string& content) {
    write_file(path_, content);
    return message_of([&] {
      const ZipReader zip(path_);
      for (const auto& record : zip.records()) zip.read(record);
    });
  }

  static std::string text(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

TEST_F(Zip, ReadsWhatItWrote) {
  write_two();
  const ZipReader zip(path_);
  ASSERT_EQ(zip.records().size(), 3u);
  EXPECT_EQ(text(zip.read(*zip.find("t/first"))), "hello");
  EXPECT_EQ(text(zip.read(*zip.find("t/second"))), "abcdef");
  EXPECT_EQ(zip.find("t/empty")->size, 0u);
  EXPECT_EQ(zip.find("t/third"), nullptr);
  for (const auto& record : zip.records()) EXPECT_EQ(record.offset % 64, 0u) << record.name;
}

// Torch writes 0 for every CRC if it is told to compute none. A single 0 is damage.
TEST_F(Zip, ChecksNothingIfAllChecksumsAreZero) {
  std::string content = write_two();
  const auto patch = [&](const std::string& name, uint32_t crc) {
    const size_t directory = content.find("PK\1\2"), at = content.find(name, directory);
    std::memcpy(content.data() + at - 30, &crc, sizeof crc);  // the entry has its CRC at byte 16
  };
  patch("t/first", 0);
  EXPECT_THAT(message_for(content), HasSubstr("record t/first"));
  patch("t/second", 0);
  EXPECT_EQ(message_for(content), "");
  RecordChecksums checks;
  const ZipReader zip(path_);
  EXPECT_FALSE(zip.has_crcs());
  const BytesPtr bytes = zip.open(*zip.find("t/second"), &checks);
  std::byte one;
  bytes->read(2, std::span(&one, 1));
  checks.finish(1);
  EXPECT_EQ(checks.finish_own().size(), 0u);
  EXPECT_THAT(checks.note(), HasSubstr(path_.string() + ": torch wrote no checksums"));
  patch("t/second", 7);
  EXPECT_THAT(message_for(content), HasSubstr("record t/first"));
}

// Returns the directory of `zip` as if its content began at `shift`, with offsets in zip64 fields.
std::string shifted_directory(const ZipReader& zip, const std::string& content, uint64_t shift) {
  std::string entries;
  for (const auto& record : zip.records()) {
    const uint64_t header = content.rfind("PK\3\4", record.offset - 1) + shift;
    const std::string extra = Fields().u16(kZip64Extra).u16(8).u64(header).bytes();
    Fields entry;
    entry.u32(kCentralHeader).u16(45).u16(45).u16(0).u16(0).u32(0).u32(record.crc);
    entry.u32(record.size).u32(record.size).u16(record.name.size()).u16(extra.size());
    entry.u16(0).u16(0).u16(0).u32(0).u32(kIn64Bits).text(record.name).text(extra);
    entries += entry.bytes();
  }
  const uint64_t size = entries.size(), count = zip.records().size();
  const uint64_t begin = content.find("PK\1\2") + shift;
  Fields end;
  end.u32(kZip64End).u64(44).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count).u64(size).u64(
      begin);
  end.u32(kZip64Locator).u32(0).u64(begin + size).u32(1);
  end.u32(kEnd).u16(0).u16(0).u16(count).u16(count).u32(size).u32(kIn64Bits).u16(0);
  return entries + end.bytes();
}

// An archive behind a hole of 5 GiB, as after a storage of that size. The file is sparse.
TEST_F(Zip, LargeOffsetsUseZip64) {
  const std::string content = write_two();
  const uint64_t hole = uint64_t{5} << 30;
  const std::string directory = shifted_directory(ZipReader(path_), content, hole);
  fs::resize_file(path_, 0);
  fs::resize_file(path_, hole);
  std::ofstream(path_, std::ios::binary | std::ios::app)
      << content.substr(0, content.find("PK\1\2")) << directory;
  const ZipReader zip(path_);
  EXPECT_EQ(text(zip.read(*zip.find("t/second"))), "abcdef");
  EXPECT_GT(zip.find("t/second")->offset, hole);
}

TEST_F(Zip, NothingOfADamagedRecordIsGivenOut) {
  std::string content = write_two();
  content[content.find("abcdef") + 2] = 'X';
  write_file(path_, content);
  const ZipReader zip(path_);
  EXPECT_EQ(text(zip.read(*zip.find("t/first"))), "hello");
  EXPECT_REFUSES(zip.read(*zip.find("t/second")), "t/second at offset");
  // Its parts cannot be read either, wherever the damage is.
  const BytesPtr bytes = zip.open(*zip.find("t/second"));
  std::byte out[3];
  for (const uint64_t offset : {4, 0, 4, 2})
    EXPECT_THROW(bytes->read(offset, std::span(out, 2)), std::runtime_error) << offset;
}

// Reads in any order, with gaps, with parts read twice, at the end of a record that is not small.
// Untouched records do not count.
TEST_F(Zip, RecordChecksumsFindDamageWhereverItIs) {
  const std::vector<std::vector<std::pair<uint64_t, size_t>>> reads = {
      {{0, 3}, {3, 3}}, {{3, 3}, {0, 3}}, {{4, 1}, {0, 2}, {2, 2}},
      {{2, 2}},         {{1, 4}, {0, 3}}, {{0, 1}, {5, 1}, {2, 1}}};
  const uint64_t before = 10'000;
  write_zip(path_, {{"t/first", "hello"}, {"t/second", std::string(before, '-') + "abcdef"}});
  const std::string content = read_file(path_);
  for (const auto& parts : reads) {
    for (size_t damaged = 0; damaged <= 6; ++damaged) {
      std::string changed = content;
      if (damaged < 6) changed[content.find("abcdef") + damaged] ^= 1;
      write_file(path_, changed);
      const ZipReader zip(path_);
      RecordChecksums checks;
      const BytesPtr bytes = zip.open(*zip.find("t/second"), &checks);
      checks.finish(2);
      std::byte out[6];
      for (const auto& [offset, size] : parts) bytes->read(before + offset, std::span(out, size));
      const std::string message = message_of([&] { checks.finish(2); });
      EXPECT_EQ(message.find("t/second at offset") != std::string::npos, damaged < 6) << damaged;
    }
  }
}

// A small record is read and checked whole at the second read.
TEST_F(Zip, ASmallRecordIsCheckedAtItsSecondRead) {
  const std::string content = write_two();
  for (const bool damaged : {false, true}) {
    std::string changed = content;
    if (damaged) changed[content.find("abcdef") + 5] ^= 1;
    write_file(path_, changed);
    RecordChecksums checks;
    const ZipReader zip(path_);
    const BytesPtr bytes = zip.open(*zip.find("t/second"), &checks);
    std::byte one;
    bytes->read(0, std::span(&one, 1));
    const std::string message = message_of([&] { bytes->read(1, std::span(&one, 1)); });
    EXPECT_EQ(message.find("t/second at offset") != std::string::npos, damaged);
  }
}

TEST_F(Zip, EveryTruncationIsRefused) {
  const std::string content = write_two();
  for (size_t size = 0; size < content.size(); ++size) {
    EXPECT_NE(message_for(content.substr(0, size)), "") << size;
  }
}

TEST_F(Zip, NoChangedByteOfTheDirectoryCrashes) {
  const std::string content = write_two();
  int refused = 0;
  for (size_t i = content.find("PK\1\2"); i < content.size(); ++i) {
    for (const int byte : {0, 1, 0x7F, 0xA5, 0xFF}) {
      std::string changed = content;
      changed[i] = static_cast<char>(byte);
      const std::string message = message_for(changed);
      refused += !message.empty();
      EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; })) << i;
    }
  }
  EXPECT_GT(refused, 300);
}

// hostile_bombs_test.cpp has the other lies of a directory.
TEST_F(Zip, EncryptedRecordsAndOtherFilesAreRefused) {
  std::string content = write_two();
  content.replace(content.find("PK\1\2") + 8, 2, std::string("\x01\0", 2));
  EXPECT_THAT(message_for(content), HasSubstr("encrypted"));
  EXPECT_THAT(message_for("not a zip"), HasSubstr("not a valid zip"));
}

}  // namespace
}  // namespace anymesh
