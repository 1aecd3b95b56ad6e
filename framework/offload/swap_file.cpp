#include "framework/offload/swap_file.h"

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

// Where bytes stop over that direct I/O cannot move from or to where they are.
class Bounce {
 public:
  static constexpr size_t kBytes = 256 << 10;
  std::span<std::byte> first(size_t bytes) {
    if (!memory_) memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBytes)));
    if (!memory_) throw std::bad_alloc();
    return {memory_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// How many of the bytes can be moved as they are: whole blocks, from block to block.
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

// Repeats `step` until `count` bytes are through.
void SwapFile::transfer(const char* verb, uint64_t offset, size_t count,
                        const Transfer& step) const {
  for (size_t done = 0; done < count;) {
    const int64_t n = step(offset + done, done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      fail(folder_,
           std::string(verb) + " " + std::to_string(count - done) + " bytes at " +
               std::to_string(offset + done) + " of the swap file",
           n < 0 ? errno : EIO);
    }
    done += static_cast<size_t>(n);
  }
  if (!direct_)
    posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(count),
                  POSIX_FADV_DONTNEED);
}

void SwapFile::read_aligned(uint64_t offset, std::span<std::byte> out) const {
  transfer("read", offset, out.size(), [&](uint64_t at, size_t done) {
    return pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(at));
  });
}

void SwapFile::write_aligned(uint64_t offset, std::span<const std::byte> bytes) const {
  transfer("write", offset, bytes.size(), [&](uint64_t at, size_t done) {
    return pwrite(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at));
  });
}

void SwapFile::read(uint64_t offset, std::span<std::byte> out) const {
  Bounce bounce;
  while (!out.empty()) {
    size_t n = direct_part(offset, out.data(), out.size());
    if (n > 0) {
      read_aligned(offset, out.first(n));
    } else {
      const uint64_t skip = offset % kAlignment;
      n = std::min(out.size(), Bounce::kBytes - skip);
      const std::span<std::byte> blocks = bounce.first(round_up(skip + n));
      read_aligned(offset - skip, blocks);
      std::memcpy(out.data(), blocks.data() + skip, n);
    }
    offset += n;
    out = out.subspan(n);
  }
}

void SwapFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  Bounce bounce;
  while (!bytes.empty()) {
    size_t n = direct_part(offset, bytes.data(), bytes.size());
    if (n > 0) {
      write_aligned(offset, bytes.first(n));
    } else {
      const uint64_t skip = offset % kAlignment;
      n = std::min(bytes.size(), Bounce::kBytes - skip);
      const std::span<std::byte> blocks = bounce.first(round_up(skip + n));
      if (blocks.size() > n) read_aligned(offset - skip, blocks);  // the neighbours stay
      std::memcpy(blocks.data() + skip, bytes.data(), n);
      write_aligned(offset - skip, blocks);
    }
    offset += n;
    bytes = bytes.subspan(n);
  }
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

// What was started is done before the thread ends.
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
