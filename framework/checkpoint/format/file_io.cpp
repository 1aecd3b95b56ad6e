#include "framework/checkpoint/format/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "framework/checkpoint/format/byte_source.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/stopwatch.h"

namespace anymesh {
namespace {

constexpr uint64_t kMaxText = 64 << 10;
constexpr size_t kSector = 4096;  // the alignment of direct writes

// Opens, applies, closes. `sync` is fsync or syncfs.
void sync_with(int (*sync)(int), const std::filesystem::path& path, int flags) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw_system_error("open", path);
  const int result = sync(descriptor);
  const int reason = errno;
  close(descriptor);
  errno = reason;
  if (result != 0) throw_system_error("sync", path);
}

void sync_directory(const std::filesystem::path& path) { sync_with(fsync, path, O_DIRECTORY); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

}  // namespace

void throw_system_error(const std::string& action, const std::filesystem::path& path) {
  const int reason = errno;
  throw std::runtime_error("cannot " + action + " " + path.string() + ": " + std::strerror(reason));
}

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path), cached_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (cached_ < 0) throw_system_error("create", path);
}

OutputFile::~OutputFile() {
  for (const Block& block : blocks_) {
    if (block.written.valid()) block.written.wait();
  }
  if (direct_ >= 0) ::close(direct_);
  if (cached_ >= 0) ::close(cached_);
}

std::span<std::byte> OutputFile::room() {
  if (filled_ == kBlock) start_write();
  auto& memory = blocks_[current_].memory;
  if (!memory) memory.reset(static_cast<std::byte*>(std::aligned_alloc(kSector, kBlock)));
  if (!memory) throw std::bad_alloc();
  return {memory.get() + filled_, kBlock - filled_};
}

void OutputFile::advance(size_t count) {
  filled_ += count;
  position_ += count;
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> free = room();
    const size_t n = std::min(free.size(), bytes.size());
    std::copy_n(bytes.begin(), n, free.begin());
    advance(n);
    bytes = bytes.subspan(n);
  }
}

void OutputFile::start_write() {
  if (position_ == kBlock) direct_ = open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
  Block& full = blocks_[current_];
  full.written = std::async(std::launch::async, [this, offset = position_ - kBlock,
                                                 bytes = std::span(full.memory.get(), kBlock)] {
    put(direct_ >= 0 ? direct_ : cached_, offset, bytes);
  });
  current_ = (current_ + 1) % blocks_.size();
  filled_ = 0;
  finish_write(blocks_[current_]);
}

void OutputFile::finish_write(Block& block) {
  const Stopwatch timing(seconds_);
  if (block.written.valid()) block.written.get();
}

// Some file systems refuse direct writes only now. After one that was cut short, by a disk that is full,
// the rest is not aligned: the cache takes it, or says why not.
void OutputFile::put(int descriptor, uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    const bool refused = n < 0 && errno == EINVAL && descriptor != cached_;
    if (n < 0 && errno != EINTR && !refused) throw_system_error("write to", path_);
    if (n >= 0 || refused) descriptor = cached_;
    const size_t written = n < 0 ? 0 : static_cast<size_t>(n);
    bytes = bytes.subspan(written);
    offset += written;
  }
}

void OutputFile::close() {
  for (Block& block : blocks_) finish_write(block);
  {
    const Stopwatch timing(seconds_);
    put(cached_, position_ - filled_, {blocks_[current_].memory.get(), filled_});
  }
  const int descriptor = std::exchange(cached_, -1);
  if (::close(descriptor) != 0) throw_system_error("close", path_);
}

void sync_file(const std::filesystem::path& path) { sync_with(fsync, path, 0); }

void sync_file_system(const std::filesystem::path& path) { sync_with(syncfs, path, 0); }

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::rename(from, to);
  sync_directory(folder_of(to));
}

void publish_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  sync_directory(from);
  if (!std::filesystem::exists(to)) return rename_durably(from, to);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    throw_system_error("swap " + from.string() + " with", to);
  }
  sync_directory(folder_of(to));
  std::filesystem::remove_all(from);
}

std::filesystem::path existing_folder(std::filesystem::path path) {
  path = std::filesystem::absolute(path);
  while (!std::filesystem::is_directory(path)) path = path.parent_path();
  return path;
}

std::string list_folder(const std::filesystem::path& folder) {
  constexpr size_t kMost = 20;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i)
    text += (text.empty() ? "" : ", ") + names[i];
  if (names.size() > kMost) text += ", ... (" + std::to_string(names.size()) + " in all)";
  return text.empty() ? "nothing" : text;
}

std::filesystem::path temporary_of(const std::filesystem::path& path) {
  return path.string() + std::string(kTemporarySuffix);
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path beside = temporary_of(path);
  OutputFile file(beside);
  file.write(std::as_bytes(std::span(text)));
  file.close();
  sync_file(beside);
  rename_durably(beside, path);
}

std::string read_text(const std::filesystem::path& path) {
  const File file(path);
  if (file.size() > kMaxText) {
    throw std::runtime_error(path.string() + ": expected a short text, found " +
                             std::to_string(file.size()) + " bytes");
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string read_tag(const std::filesystem::path& pointer_file) {
  std::string tag = read_text(pointer_file);
  while (!tag.empty() && std::isspace(static_cast<unsigned char>(tag.back()))) tag.pop_back();
  return tag;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace anymesh
