#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace anymesh {

// A file of known size that several threads write, at any place and in any order.
//
//   DirectFile file(path, 5 << 20);                  // throws if the disk has no room for it
//   file.write_blocks(1 << 20, block);               // past the page cache where possible
//   file.write(4 << 20, rest);
//
// If the file already exists and `compare` is set, only bytes that differ are written. Interrupted
// work thus resumes where it stopped, and existing bytes are verified. Links, files with other
// names and anything that is not a file are not written to. Throws std::runtime_error with the path
// and the system's reason.
class DirectFile {
 public:
  // The alignment of write_blocks() for offset, size and memory. It suits any disk's sectors.
  static constexpr uint64_t kSector = 4096;

  DirectFile(const std::filesystem::path& path, uint64_t size, bool compare = true);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Bypasses the page cache (O_DIRECT). This saves a copy, and the kernel need not find memory.
  void write_blocks(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t kept() const { return kept_; }  // bytes that were there already

 private:
  bool is_there(uint64_t offset, std::span<const std::byte> bytes) const;
  // Writes all of `bytes`. Returns false if the file system takes no direct writes.
  bool put(int descriptor, uint64_t offset, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  int cached_ = -1, direct_ = -1;
  bool was_there_ = false;
  std::atomic<uint64_t> kept_{0};
};

}  // namespace anymesh
