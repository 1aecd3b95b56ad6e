#include "tests/support/failing_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace {

std::string watched;             // nothing fails if it is empty
std::atomic<int64_t> left = -1;  // calls before the one that fails
int failure = 0;

// Returns whether this call is the one to fail, with errno set.
bool fails(const std::string& path) {
  if (watched.empty() || !path.starts_with(watched) || left.fetch_sub(1) != 0) return false;
  if (failure == anymesh::FailingCall::kKill) kill(getpid(), SIGKILL);
  errno = failure;
  return true;
}

bool fails(int file) {
  if (watched.empty()) return false;
  std::array<char, 4096> path;
  const ssize_t n =
      readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size());
  return n > 0 && fails(std::string(path.data(), static_cast<size_t>(n)));
}

}  // namespace

extern "C" {

int unlinkat(int folder, const char* name, int flags) noexcept {
  if (failure == anymesh::FailingCall::kKill) fails(folder);
  return static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
}

int rmdir(const char* path) noexcept {
  if (failure == anymesh::FailingCall::kKill) fails(std::string(path));
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

int remove(const char* path) noexcept {
  if (failure == anymesh::FailingCall::kKill) fails(std::string(path));
  const auto without = [path](int flags) {
    return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, flags));
  };
  return without(0) == 0 ? 0 : errno == EISDIR ? without(AT_REMOVEDIR) : -1;
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0 && fails(std::string(path))) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int fallocate(int file, int mode, off_t offset, off_t size) {
  if (fails(file)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, size));
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  if (fails(file)) return -1;
  return syscall(SYS_pwrite64, file, bytes, size, offset);
}

int fsync(int file) { return fails(file) ? -1 : static_cast<int>(syscall(SYS_fsync, file)); }

int syncfs(int file) noexcept {
  return fails(file) ? -1 : static_cast<int>(syscall(SYS_syncfs, file));
}

int rename(const char* from, const char* to) noexcept {
  if (fails(std::string(from))) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  if (fails(std::string(from))) return -1;
  if (anymesh::FailingCall::cannot_swap && (flags & RENAME_EXCHANGE) != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (fails(std::string(path))) return -1;
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

}  // extern "C"

namespace anymesh {

FailingCall::FailingCall(const std::filesystem::path& folder, int64_t at, int reason) {
  left = at;
  failure = reason;
  watched = folder;
}

FailingCall::~FailingCall() { watched.clear(); }

bool FailingCall::met() const { return left < 0; }

}  // namespace anymesh
