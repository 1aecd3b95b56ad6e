#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace anymesh {

// A file of known size whose bytes are put at their places in any order, by several threads.
//
//   PlacedFile file(path, 5 << 20);                  // the disk has room for all of it, or this throws
//   file.write_blocks(1 << 20, block);               // past the page cache, where there is a way
//   file.write(5 << 20, rest);
//
// Opened over an earlier file of that name it writes only where that one differs, so that work
// which was interrupted goes on where it was, and whatever lies there is verified. A link, a file
// with other names and what is no file are not written to. Throws std::runtime_error with the path
// and the system's reason.
class PlacedFile {
 public:
  // The alignment of write_blocks, of offset, size and memory: that of any disk's sectors.
  static constexpr uint64_t kSector = 4096;

  PlacedFile(const std::filesystem::path& path, uint64_t size, bool compare = true);
  ~PlacedFile();
  PlacedFile(const PlacedFile&) = delete;
  PlacedFile& operator=(const PlacedFile&) = delete;

  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Goes around the page cache (O_DIRECT): one copy less, and memory that the kernel needs not
  // find.
  void write_blocks(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t kept() const { return kept_; }  // bytes that were there already

 private:
  bool is_there(uint64_t offset, std::span<const std::byte> bytes) const;
  // All of `bytes`, or false where the file system takes no direct writes.
  bool put(int descriptor, uint64_t offset, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  int cached_ = -1, direct_ = -1;
  bool was_there_ = false;
  std::atomic<uint64_t> kept_{0};
};

}  // namespace anymesh
