#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace anymesh::pretend {

// Which work of streams is ordered before which, by vector clocks. Thread-safe.
class Order {
 public:
  static constexpr size_t kStreams = 64;
  using Clock = std::array<int64_t, kStreams>;  // work of each stream that is known to be done

  // Starts work in a stream: it follows the stream's work so far, and what the host has waited for.
  void begin(size_t stream);

  Clock of_stream(size_t stream);  // an event
  void stream_waits(size_t stream, const Clock& event);
  void host_waits(const Clock& event);
  void host_waits_for_all();
  bool host_knows(const Clock& event);
  int64_t waits() const { return waits_; }

  // Memory. Accesses of the work that `stream` began last; the host's if `stream` is kHost. Throw
  // std::runtime_error where the order is missing.
  static constexpr size_t kHost = kStreams;
  void allocated(const void* at, size_t size, size_t stream);
  void freed(const void* at);
  void reads(const void* at, size_t size, size_t stream, const std::string& what);
  void writes(const void* at, size_t size, size_t stream, const std::string& what);

 private:
  struct Access {
    size_t begin, end;  // bytes of the block
    size_t stream;
    int64_t time;
    bool write;
    std::string what;
  };
  struct Block {
    size_t size, stream;
    std::vector<Access> accesses;
  };
  using Blocks = std::map<const std::byte*, Block>;

  Blocks::iterator block_of(const void* at);
  void access(const void* at, size_t size, size_t stream, bool write, const std::string& what);
  bool knows(size_t stream, const Access& access) const;

  std::mutex mutex_;
  std::array<Clock, kStreams> streams_{};
  Clock host_{};
  Blocks blocks_;
  int64_t waits_ = 0;
};

Order& order();

}  // namespace anymesh::pretend
