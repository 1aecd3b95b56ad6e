#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <span>
#include <thread>

namespace anymesh {

// Keeps a rank's offloaded state in a file without a name in `folder` (--nvme-path). The system
// removes the file when the process ends, however it ends.
//
//   SwapFile file("/local_nvme");
//   uint64_t moments = file.reserve(4 * numel);                  // on disk from here on; all zeros
//   std::future<void> done = file.start([&] { file.read(moments, bytes); });
//   ...                                                          // work that needs no `bytes`
//   done.get();                                                  // throws the read's error
//
// Space is reserved, so that a full disk shows at the start of a run, not in the middle. Bytes go
// past the page cache if the file system allows it (O_DIRECT); otherwise the cache is told to drop
// them. Neither our buffers nor the system's grow with the state. Any range can be read and
// written. A range is fast if it begins at a multiple of kAlignment, in the file and in memory.
//
// All methods throw std::runtime_error with the flag, the folder and the system's reason.
class SwapFile {
 public:
  static constexpr uint64_t kAlignment = 4096;

  explicit SwapFile(const std::filesystem::path& folder);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  // Makes room for `bytes` more and returns their offset, a multiple of kAlignment.
  uint64_t reserve(uint64_t bytes);
  uint64_t size() const { return size_; }

  // Safe from several threads, as long as nobody writes a range that shares a block of kAlignment
  // with another range in use.
  void read(uint64_t offset, std::span<std::byte> out) const;
  void write(uint64_t offset, std::span<const std::byte> bytes);

  // Runs `work` on the file's own thread, one call after the other, in the order of the calls.
  std::future<void> start(std::function<void()> work);

 private:
  // Moves bytes to the file if it `writes`, else from it.
  void move(bool writes, uint64_t offset, std::span<std::byte> bytes) const;
  void move_blocks(bool writes, uint64_t offset, std::span<std::byte> bytes) const;
  void run(const std::stop_token& stop);

  std::filesystem::path folder_;
  int descriptor_;
  bool direct_ = false;
  uint64_t size_ = 0;

  std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::deque<std::packaged_task<void()>> queue_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace anymesh
