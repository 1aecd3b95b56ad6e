#include "framework/format/io/byte_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <numeric>
#include <set>
#include <thread>

#include "framework/format/io/crc32.h"
#include "framework/format/io/direct_file.h"
#include "framework/format/io/file_io.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

using FileIo = TempFolder;

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t state = 1;
  for (auto& byte : bytes)
    byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

std::vector<std::byte> slice(const ByteSource& source, uint64_t offset, size_t count) {
  std::vector<std::byte> out(count);
  source.read(offset, out);
  return out;
}

TEST(StridedView, ReadsAnyRangeOfATransposedTensor) {
  std::vector<float> storage(2 + 3 * 4);
  std::iota(storage.begin(), storage.end(), 0.0f);
  const StridedView view(bytes_of(storage), 4, 2, {4, 3},
                         {1, 4});  // the transpose of [3, 4] at offset 2
  EXPECT_EQ(floats(view), (std::vector<float>{2, 6, 10, 3, 7, 11, 4, 8, 12, 5, 9, 13}));
  const auto whole = read_bytes(view);
  EXPECT_EQ(slice(view, 12, 16), std::vector(whole.begin() + 12, whole.begin() + 28));
}

TEST(StridedView, KeepsRowsOfACutTensor) {
  std::vector<float> storage(12);
  std::iota(storage.begin(), storage.end(), 0.0f);
  const StridedView view(bytes_of(storage), 4, 1, {3, 2}, {4, 1});  // columns 1 and 2 of [3, 4]
  EXPECT_EQ(floats(view), (std::vector<float>{1, 2, 5, 6, 9, 10}));
}

TEST_F(FileIo, ViewsKnowTheirPlacesInTheFile) {
  write_file(folder_ / "f", std::string(80, 'x'));
  const BytesPtr file = std::make_shared<File>(folder_ / "f"),
                 storage = std::make_shared<SubRange>(file, 16, 48);
  const auto places = [&](const ByteSource& source, uint64_t offset, uint64_t count) {
    std::vector<std::pair<uint64_t, uint64_t>> found;
    for (const FileRange& range : source.places(offset, count)) {
      EXPECT_EQ(range.file, folder_ / "f");
      found.emplace_back(range.offset, range.size);
    }
    return found;
  };
  using Places = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(places(*storage, 8, 12), (Places{{24, 12}}));
  const StridedView columns(storage, 4, 1, {3, 2}, {4, 1});  // columns 1 and 2 of [3, 4]
  EXPECT_EQ(places(columns, 0, 24), (Places{{20, 8}, {36, 8}, {52, 8}}));
  EXPECT_EQ(places(columns, 4, 8), (Places{{24, 4}, {36, 4}}));
  EXPECT_EQ(places(*bytes_of(std::vector<float>{1}), 0, 4), Places());
}

TEST(StridedView, ExpandsWhatIsSmall) {
  const auto two = bytes_of(std::vector<float>{7, 8});
  const StridedView rows(two, 4, 0, {2, 3, 2}, {0, 0, 1}), columns(two, 4, 0, {2, 300}, {1, 0});
  EXPECT_EQ(floats(rows), (std::vector<float>{7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 7, 8}));
  std::vector<float> expected(300, 7);
  expected.resize(600, 8);
  EXPECT_EQ(floats(columns), expected);
  EXPECT_EQ(slice(columns, 4 * 299, 8), slice(*two, 0, 8));
  EXPECT_NO_THROW(StridedView(two, 4, 0, {1 << 28}, {0}));
  EXPECT_THROW(StridedView(two, 4, 0, {(1 << 28) + 1}, {0}), std::runtime_error);
}

TEST(StridedView, RefusesWhatExceedsTheStorage) {
  const auto storage = bytes_of(std::vector<float>(12));
  EXPECT_NO_THROW(StridedView(storage, 4, 0, {3, 4}, {4, 1}));
  EXPECT_THROW(StridedView(storage, 4, 1, {3, 4}, {4, 1}), std::runtime_error);
  EXPECT_THROW(StridedView(storage, 4, 0, {2, 2}, {INT64_MAX, INT64_MAX}), std::runtime_error);
  EXPECT_THROW(StridedView(storage, 4, 0, {INT64_MAX, INT64_MAX}, {0, 0}), std::runtime_error);
  EXPECT_THROW(StridedView(storage, 4, 0, {2}, {-1}), std::runtime_error);
}

TEST(Crc32, KnownValue) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(text))), 0xCBF43926);
  EXPECT_EQ(crc32({}), 0u);
}

// The definition: a division by the polynomial, bit by bit.
uint32_t crc32_by_bits(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

TEST(Crc32, AgreesWithItsDefinitionAndCombines) {
  const auto bytes = pattern(5000);
  const std::span<const std::byte> all(bytes);
  for (const size_t size : {0,   1,   15,  16,  63,  64,  65,  127, 128, 129,  191,
                            192, 255, 256, 257, 319, 320, 511, 512, 513, 1000, 4999}) {
    const auto part = all.subspan(1, size);
    EXPECT_EQ(crc32(part, 7), crc32_by_bits(part, 7)) << size;
    for (const size_t cut : {size_t{0}, size / 3, size}) {
      EXPECT_EQ(crc32_combine(crc32(part.first(cut)), crc32(part.subspan(cut)), size - cut),
                crc32(part))
          << size;
    }
  }
}

TEST_F(FileIo, TextReplacesAtomically) {
  write_text_atomically(folder_ / "latest", "global_step1");
  write_text_atomically(folder_ / "latest", "global_step2");
  EXPECT_EQ(read_text(folder_ / "latest"), "global_step2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}),
            1);  // nothing left beside it
}

TEST_F(FileIo, ErrorsNameThePath) {
  EXPECT_REFUSES(read_text(folder_ / "absent"), "absent");
  EXPECT_REFUSES(read_text(folder_), "is a folder, expected a file");
  EXPECT_REFUSES(write_text_atomically(folder_ / "no" / "file", ""), "no/file");
}

// Things that may be in the place of a file. The reader must not wait for any of them.
TEST_F(FileIo, WhatIsNoFileIsNamed) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", folder_ / "link");
  fs::create_symlink("loop", folder_ / "loop");
  write_file(folder_ / "pointer",
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n");
  const std::pair<fs::path, std::string> kinds[] = {
      {folder_ / "fifo", "is a FIFO, expected a file"},
      {folder_ / "link", "is a FIFO, expected a file"},
      {folder_ / "loop", "cannot open: Too many levels of symbolic links"},
      {folder_ / "pointer", "is a git-lfs pointer and not the file itself: run `git lfs pull`"},
      {"/dev/null", "is a device, expected a file"},
      {folder_, "is a folder, expected a file"}};
  for (const auto& kind : kinds) {
    const fs::path& path = kind.first;
    const std::string expected = path.string() + ": " + kind.second;
    EXPECT_TRUE(message_of([&] { File file(path); }).starts_with(expected)) << expected;
    EXPECT_TRUE(message_of([&] { InputFile file(path); }).starts_with(expected)) << expected;
    EXPECT_TRUE(message_of([&] { read_torch_file(path); }).starts_with(expected)) << expected;
  }
}

// A shell makes such a pipe of <(zcat a.csv.gz). Its writer comes later.
TEST_F(FileIo, APipeIsReadWhereItIsNamedAsOne) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string name = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(message_of([&] { File file(name); }), name + ": is a FIFO, expected a file");
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(write(ends[1], "text", 4), 4);
    close(ends[1]);
  });
  EXPECT_EQ(read_file(name), "text");
  writer.join();
  close(ends[0]);
}

TEST_F(FileIo, AFullDiskIsSaidByTheSystemsWords) {
  const FileSizeLimit limit(4096);
  const std::string message =
      message_of([&] { write_text_atomically(folder_ / "f", std::string(5000, 'x')); });
  const std::string start = "cannot set 5000 bytes aside for " + (folder_ / "f.").string();
  EXPECT_EQ(message.substr(0, start.size()), start);
  EXPECT_EQ(message.substr(start.size() + 8), ".tmp: File too large");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FileIo, ANewFileHasANameThatNothingHad) {
  std::set<fs::path> made;
  std::deque<NewFile> files;
  for (int i = 0; i < 20; ++i) {
    files.emplace_back(folder_ / "latest");
    EXPECT_TRUE(made.insert(files.back().path()).second);
    EXPECT_EQ(made_beside(files.back().path()), folder_ / "latest");
  }
  for (const auto& path : made) EXPECT_TRUE(fs::exists(path));
  for (const char* other : {"latest.tmp", "latest", ".1234abcd.tmp", "latest.1234ABCD.tmp"})
    EXPECT_FALSE(made_beside(other)) << other;
}

TEST_F(FileIo, WhatAKilledRunWasMakingGoesAndNothingElse) {
  const auto thesis = folder_ / "thesis", link = folder_ / "latest.00000001.tmp",
             other = folder_ / "other.00000001.tmp", left = folder_ / "latest.00000002.tmp";
  for (const auto& path : {thesis, other, left}) write_file(path, "thesis");
  fs::create_symlink(thesis, link);
  const NewFile busy(folder_ / "latest");
  EXPECT_FALSE(fs::exists(left));
  write_text_atomically(folder_ / "latest", "text");
  for (const auto& path : {thesis, other, link}) EXPECT_EQ(read_text(path), "thesis") << path;
  EXPECT_TRUE(fs::exists(busy.path()));
  remove_unfinished(folder_, [](const auto& name) { return name == "other"; });
  EXPECT_FALSE(fs::exists(other));
}

// The temporary name is a link to a file elsewhere, or a second name of one.
TEST_F(FileIo, LinksAreNotWrittenThrough) {
  const auto thesis = folder_ / "thesis", link = folder_ / "latest.tmp";
  write_file(thesis, "thesis");
  for (const bool hard : {false, true}) {
    hard ? fs::create_hard_link(thesis, link) : fs::create_symlink(thesis, link);
    write_text_atomically(folder_ / "latest", "global_step1");
    EXPECT_NE(message_of([&] { DirectFile(link, 3); }), "") << hard;
    EXPECT_EQ(read_file(thesis), "thesis") << hard;
    fs::remove(link);
  }
}

TEST_F(FileIo, RangesStayInside) {
  write_file(folder_ / "f", "0123456789");
  const auto file = std::make_shared<File>(folder_ / "f");
  const SubRange range(file, 2, 5);
  EXPECT_EQ(slice(range, 1, 2), (std::vector{std::byte{'3'}, std::byte{'4'}}));
  EXPECT_THROW(slice(range, 4, 2), std::runtime_error);
  EXPECT_THROW(SubRange(file, 6, 5), std::runtime_error);
  EXPECT_THROW(SubRange(file, UINT64_MAX, 1), std::runtime_error);
}

}  // namespace
}  // namespace anymesh
