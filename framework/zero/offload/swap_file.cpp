#include "framework/zero/offload/swap_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace anymesh {
namespace {

constexpr uint64_t kAlignment = SwapFile::kAlignment;

uint64_t round_down(uint64_t n) { return n / kAlignment * kAlignment; }
uint64_t round_up(uint64_t n) { return round_down(n + kAlignment - 1); }

// Returns how many of the bytes can be moved in place: whole blocks, if both sides are aligned.
size_t direct_part(uint64_t offset, const std::byte* memory, size_t bytes) {
  const bool aligned =
      offset % kAlignment == 0 && reinterpret_cast<uintptr_t>(memory) % kAlignment == 0;
  return aligned ? round_down(bytes) : 0;
}

[[noreturn]] void fail(const std::filesystem::path& folder, const std::string& action, int reason) {
  throw std::runtime_error("--nvme-path " + folder.string() + ": cannot " + action + ": " +
                           std::strerror(reason));
}

std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

SwapFile::SwapFile(const std::filesystem::path& folder) : folder_(folder) {
  std::string name = (folder / "anymesh.XXXXXX").string();
  descriptor_ = mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail(folder_, "create a swap file there", errno);
  unlink(name.c_str());
  direct_ = fcntl(descriptor_, F_SETFL, O_DIRECT) == 0;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

SwapFile::~SwapFile() {
  thread_.request_stop();
  thread_.join();
  close(descriptor_);
}

uint64_t SwapFile::reserve(uint64_t bytes) {
  const uint64_t begin = size_, more = std::max(round_up(bytes), kAlignment);
  struct statvfs disk {};
  const uint64_t free = fstatvfs(descriptor_, &disk) == 0 ? disk.f_bavail * disk.f_frsize : 0;
  const auto at = static_cast<off_t>(begin), length = static_cast<off_t>(more);
  int failed = fallocate(descriptor_, 0, at, length) == 0 ? 0 : errno;
  if (failed == EOPNOTSUPP) {
    failed = free < more ? ENOSPC : ftruncate(descriptor_, at + length) == 0 ? 0 : errno;
  }
  if (failed != 0) {
    fail(folder_,
         "reserve " + mebibytes(more) + " for a rank's state on top of " + mebibytes(begin) +
             ", with " + mebibytes(free) + " free",
         failed);
  }
  size_ += more;
  return begin;
}

// Moves bytes that are aligned for direct I/O, in the file and in memory.
void SwapFile::move_blocks(bool writes, uint64_t offset, std::span<std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const size_t left = bytes.size() - done;
    const auto at = static_cast<off_t>(offset + done);
    const int64_t n = writes ? pwrite(descriptor_, bytes.data() + done, left, at)
                             : pread(descriptor_, bytes.data() + done, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      fail(folder_,
           std::string(writes ? "write " : "read ") + std::to_string(left) + " bytes at " +
               std::to_string(at) + " of the swap file",
           n < 0 ? errno : EIO);
    }
    done += static_cast<size_t>(n);
  }
  if (!direct_)
    posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes.size()),
                  POSIX_FADV_DONTNEED);
}

// Moves bytes through an aligned buffer if direct I/O cannot move them in place.
void SwapFile::move(bool writes, uint64_t offset, std::span<std::byte> bytes) const {
  constexpr size_t kStopover = 256 << 10;
  std::unique_ptr<std::byte, void (*)(void*)> stopover(nullptr, std::free);
  while (!bytes.empty()) {
    size_t n = direct_part(offset, bytes.data(), bytes.size());
    if (n > 0) {
      move_blocks(writes, offset, bytes.first(n));
    } else {
      if (!stopover)
        stopover.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kStopover)));
      if (!stopover) throw std::bad_alloc();
      const uint64_t skip = offset % kAlignment;
      n = std::min(bytes.size(), kStopover - skip);
      const std::span<std::byte> blocks(stopover.get(), round_up(skip + n));
      std::byte* const middle = blocks.data() + skip;
      if (!writes || blocks.size() > n)
        move_blocks(false, offset - skip, blocks);  // keeps the neighbours
      std::memcpy(writes ? middle : bytes.data(), writes ? bytes.data() : middle, n);
      if (writes) move_blocks(true, offset - skip, blocks);
    }
    offset += n;
    bytes = bytes.subspan(n);
  }
}

void SwapFile::read(uint64_t offset, std::span<std::byte> out) const { move(false, offset, out); }

void SwapFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  move(true, offset, {const_cast<std::byte*>(bytes.data()), bytes.size()});
}

std::future<void> SwapFile::start(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(task));
  }
  arrived_.notify_one();
  return done;
}

// Finishes all started work before the thread ends.
void SwapFile::run(const std::stop_token& stop) {
  while (true) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
    std::packaged_task<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
  }
}

}  // namespace anymesh
