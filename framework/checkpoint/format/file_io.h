#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace anymesh {

// Writing files so that a crash leaves either the old or the new state, never half of one: write
// beside, sync, rename, sync the folder. All throw std::runtime_error naming the path and the
// system's reason.

// "cannot write to PATH: No space left on device", by errno.
[[noreturn]] void throw_system_error(const std::string& action, const std::filesystem::path& path);

// A new (or emptied) file that is written front to back. close() reports errors; the destructor
// cannot.
//
// What is written gathers in aligned blocks, which go to the disk past the page cache (O_DIRECT, where
// the file system has it), several at a time, while the next one fills: no copy in the kernel, and no
// pages that other memory must make room for. The rest, and small files, go through the cache.
class OutputFile {
 public:
  static constexpr size_t kBlock = 4 << 20;

  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // The same without a copy: room for the next bytes, at least one, and how many of them are there.
  std::span<std::byte> room();
  void advance(size_t count);

  uint64_t position() const { return position_; }
  double seconds() const { return seconds_; }  // that the disk kept its caller waiting
  void close();

 private:
  struct Block {
    std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, &std::free};
    std::future<void> written;
  };
  void start_write();
  void finish_write(Block& block);
  void put(int descriptor, uint64_t offset, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  int cached_, direct_ = -1;
  uint64_t position_ = 0;
  double seconds_ = 0;
  std::array<Block, 4> blocks_;
  size_t current_ = 0, filled_ = 0;  // the block that fills, and how far it has
};

void sync_file(const std::filesystem::path& path);
// Everything that was written to the file system which holds `path`: one call instead of one for
// each of many files.
void sync_file_system(const std::filesystem::path& path);
// PATH.tmp: where a file or folder is written, before it gets its name.
std::filesystem::path temporary_of(const std::filesystem::path& path);
void write_text_atomically(const std::filesystem::path& path, std::string_view text);
std::string read_text(const std::filesystem::path& path);  // at most 64 KiB
// What `latest` or `latest_universal` says, without the white space that an editor may leave behind.
std::string read_tag(const std::filesystem::path& pointer_file);
// Renames, replacing a file of that name, then syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// Syncs the folder `from` and gives it the name `to`. A folder that has the name is replaced as a
// whole: the two swap names in one step, then the old one is removed.
void publish_folder(const std::filesystem::path& from, const std::filesystem::path& to);
// The path, if it is a folder, else the folder that will hold it, or hold the folder that will, ...
std::filesystem::path existing_folder(std::filesystem::path path);
// "latest, global_step50, global_step100" or "nothing": what a folder holds, for messages.
std::string list_folder(const std::filesystem::path& folder);

// Of this machine, for messages about files that others wrote.
std::string host_name();

}  // namespace anymesh
