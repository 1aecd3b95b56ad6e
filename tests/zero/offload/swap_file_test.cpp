#include "framework/zero/offload/swap_file.h"

#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

TEST(SwapFile, LeavesNoNameBehind) {
  const fs::path folder = fs::path(testing::TempDir()) / "swap_file_names";
  fs::create_directory(folder);
  SwapFile file(folder);
  file.reserve(1 << 20);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove(folder);
}

TEST(SwapFile, StartsAsZerosAtAlignedOffsets) {
  SwapFile file(testing::TempDir());
  EXPECT_EQ(file.reserve(1), 0u);
  EXPECT_EQ(file.reserve(5000), SwapFile::kAlignment);
  EXPECT_EQ(file.reserve(0), 3 * SwapFile::kAlignment);
  std::vector<std::byte> bytes(file.size(), std::byte{1});
  file.read(0, bytes);
  EXPECT_EQ(bytes, std::vector<std::byte>(file.size()));
}

// Writes any range, from memory aligned in any way, and compares with a buffer that gets the same.
// Runs on a disk, and in /dev/shm, which takes no direct I/O before Linux 6.6.
class SwapFileIn : public testing::TestWithParam<std::string> {};

TEST_P(SwapFileIn, KeepsWhatIsWritten) {
  constexpr size_t kSize = 3 << 20;
  SwapFile file(GetParam());
  file.reserve(kSize);
  std::vector<std::byte> mirror(kSize), source(kSize + SwapFile::kAlignment), read(kSize);
  std::mt19937 random(1);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  std::byte* aligned = source.data();
  aligned += SwapFile::kAlignment - reinterpret_cast<uintptr_t>(aligned) % SwapFile::kAlignment;
  for (int i = 0; i < 60; ++i) {
    size_t begin = random() % kSize, count = random() % (kSize - begin);
    if (i % 3 == 0) begin = begin / 4096 * 4096;
    if (i % 5 == 0) count = std::min<size_t>(count, 100);
    const std::byte* from = i % 2 == 0 ? aligned : source.data();
    file.write(begin, {from, count});
    std::memcpy(mirror.data() + begin, from, count);
    const size_t at = random() % kSize, n = random() % (kSize - at);
    file.read(at, std::span(read).first(n));
    ASSERT_EQ(std::memcmp(read.data(), mirror.data() + at, n), 0) << "after write " << i;
  }
  file.read(0, read);
  EXPECT_EQ(read, mirror);
}

INSTANTIATE_TEST_SUITE_P(Folders, SwapFileIn, testing::Values(testing::TempDir(), "/dev/shm"));

TEST(SwapFile, RunsWorkInOrderAndCarriesItsErrors) {
  std::vector<int> order;
  std::future<void> failed, last;
  {
    SwapFile file(testing::TempDir());
    for (int i = 0; i < 20; ++i) file.start([&order, i] { order.push_back(i); });
    failed = file.start([] { throw std::runtime_error("the disk is gone"); });
    last = file.start([&] { order.push_back(20); });
  }
  EXPECT_EQ(message_of([&] { failed.get(); }), "the disk is gone");
  last.get();
  for (int i = 0; i <= 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SwapFile, RefusesFoldersThatItCannotUse) {
  const std::string missing = testing::TempDir() + "no_such_folder";
  EXPECT_EQ(
      message_of([&] { SwapFile file(missing); }),
      "--nvme-path " + missing + ": cannot create a swap file there: No such file or directory");
  const std::string plain = testing::TempDir() + "swap_file_plain";
  std::ofstream(plain) << "text";
  EXPECT_REFUSES(SwapFile file(plain), "Not a directory");
  fs::remove(plain);
  EXPECT_THAT(message_of([] { SwapFile file("/proc"); }),  // where not even root creates files
              HasSubstr("--nvme-path /proc: cannot create a swap file there: "));
}

TEST(SwapFile, SaysHowMuchDoesNotFit) {
  SwapFile file(testing::TempDir());
  const FileSizeLimit limit(6 << 20);
  file.reserve(4 << 20);
  EXPECT_REFUSES(file.reserve(5 << 20), "--nvme-path " + testing::TempDir(),
                 "cannot reserve 5 MiB for a rank's state on top of 4 MiB, with ",
                 " MiB free: File too large");
  EXPECT_EQ(file.size(), 4u << 20);
}

TEST(SwapFile, ReportsFailedReadsAndWrites) {
  SwapFile file(testing::TempDir());
  file.reserve(1 << 20);
  std::vector<std::byte> bytes(10);
  EXPECT_REFUSES(file.read(2 << 20, bytes), "cannot read 4096 bytes at 2097152 of the swap file: ");
  const FileSizeLimit limit(1 << 19);
  EXPECT_REFUSES(file.write(1 << 19, bytes),
                 "cannot write 4096 bytes at 524288 of the swap file: File too large");
}

}  // namespace
}  // namespace anymesh
