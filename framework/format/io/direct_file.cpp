#include "framework/format/io/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "framework/format/io/file_io.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Follows no link and does not wait for the reader of a pipe.
constexpr int kNoOthers = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

}  // namespace

DirectFile::DirectFile(const std::filesystem::path& path, uint64_t size, bool compare)
    : path_(path), cached_(open(path.c_str(), O_RDWR | O_CREAT | kNoOthers, 0666)) {
  if (cached_ < 0) throw_system_error("create", path_);
  struct stat status;
  if (fstat(cached_, &status) != 0) throw_system_error("look at", path_);
  if (!S_ISREG(status.st_mode) || status.st_nlink != 1)
    throw UserError("cannot write to " + path_.string() +
                    ": it is no file, or one that has other names (hard links)");
  const auto bytes = static_cast<off_t>(size);
  was_there_ = compare && status.st_size > 0;
  if (status.st_size > bytes && ftruncate(cached_, bytes) != 0) throw_system_error("cut", path_);
  if (size == 0) return;
  // If the file system cannot set space aside, the writes allocate it.
  if (fallocate(cached_, 0, 0, bytes) != 0 && errno != EOPNOTSUPP)
    throw_system_error("set " + std::to_string(size) + " bytes aside for", path_);
  if (size >= kSector) direct_ = open(path.c_str(), O_WRONLY | O_DIRECT | kNoOthers);
}

DirectFile::~DirectFile() {
  for (const int descriptor : {cached_, direct_})
    if (descriptor >= 0) close(descriptor);
}

bool DirectFile::is_there(uint64_t offset, std::span<const std::byte> bytes) const {
  std::array<std::byte, 64 << 10> chunk;
  while (was_there_ && !bytes.empty()) {
    const size_t wanted = std::min(chunk.size(), bytes.size());
    const ssize_t n = pread(cached_, chunk.data(), wanted, static_cast<off_t>(offset));
    if (n <= 0 || std::memcmp(chunk.data(), bytes.data(), static_cast<size_t>(n)) != 0)
      return false;
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return was_there_;
}

bool DirectFile::put(int descriptor, uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && descriptor == direct_) return false;
    if (n < 0) throw_system_error("write to", path_);
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

void DirectFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (is_there(offset, bytes)) {
    kept_ += bytes.size();
  } else {
    put(cached_, offset, bytes);
  }
}

void DirectFile::write_blocks(uint64_t offset, std::span<const std::byte> bytes) {
  if (is_there(offset, bytes)) {
    kept_ += bytes.size();
  } else if (direct_ < 0 || !put(direct_, offset, bytes)) {
    put(cached_, offset, bytes);
  }
}

}  // namespace anymesh
