#include "tests/pretend/order.h"

#include <algorithm>
#include <stdexcept>

namespace anymesh::pretend {
namespace {

void join(Order::Clock& clock, const Order::Clock& other) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

void Order::begin(size_t stream) {
  const std::lock_guard lock(mutex_);
  join(streams_[stream], host_);
  ++streams_[stream][stream];
}

Order::Clock Order::of_stream(size_t stream) {
  const std::lock_guard lock(mutex_);
  return streams_[stream];
}

void Order::stream_waits(size_t stream, const Clock& event) {
  const std::lock_guard lock(mutex_);
  join(streams_[stream], event);
}

void Order::host_waits(const Clock& event) {
  const std::lock_guard lock(mutex_);
  join(host_, event);
  ++waits_;
}

void Order::host_waits_for_all() {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kStreams; ++i) host_[i] = std::max(host_[i], streams_[i][i]);
  ++waits_;
}

bool Order::host_knows(const Clock& event) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kStreams; ++i)
    if (host_[i] < event[i]) return false;
  return true;
}

void Order::allocated(const void* at, size_t size, size_t stream) {
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<const std::byte*>(at)] = {size, stream, {}};
}

// An allocator gives the memory to the next tensor of the same stream, without a wait.
void Order::freed(const void* at) {
  const std::lock_guard lock(mutex_);
  const auto block = block_of(at);
  const Block gone = std::move(block->second);
  blocks_.erase(block);
  if (gone.stream == kHost) return;  // pinned memory: its allocator waits
  for (const Access& access : gone.accesses)
    if (!knows(gone.stream, access))
      throw std::runtime_error("memory is freed while stream " + std::to_string(access.stream) +
                               " may still use it (" + access.what + ")");
}

void Order::reads(const void* at, size_t size, size_t stream, const std::string& what) {
  access(at, size, stream, false, what);
}

void Order::writes(const void* at, size_t size, size_t stream, const std::string& what) {
  access(at, size, stream, true, what);
}

Order::Blocks::iterator Order::block_of(const void* at) {
  auto block = blocks_.upper_bound(static_cast<const std::byte*>(at));
  if (block == blocks_.begin()) throw std::runtime_error("memory that is not the device's");
  --block;
  if (static_cast<const std::byte*>(at) >= block->first + block->second.size + 1)
    throw std::runtime_error("memory that is not the device's");
  return block;
}

void Order::access(const void* at, size_t size, size_t stream, bool write,
                   const std::string& what) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  const auto block = block_of(at);
  const auto begin = static_cast<size_t>(static_cast<const std::byte*>(at) - block->first),
             end = begin + size;
  for (const Access& other : block->second.accesses) {
    const bool overlaps = other.begin < end && begin < other.end;
    if (!overlaps || !(write || other.write) || knows(stream, other)) continue;
    throw std::runtime_error(
        what + (stream == kHost ? " on the host" : " in stream " + std::to_string(stream)) +
        (write ? " writes" : " reads") + " memory that " + other.what + " in stream " +
        std::to_string(other.stream) + " may still " + (other.write ? "write" : "read") +
        ": a wait is missing");
  }
  // Everything inside that is known to be done is now behind this access.
  if (write)
    std::erase_if(block->second.accesses,
                  [&](const Access& a) { return begin <= a.begin && a.end <= end; });
  if (stream != kHost)
    block->second.accesses.push_back({begin, end, stream, streams_[stream][stream], write, what});
}

bool Order::knows(size_t stream, const Access& access) const {
  const bool host_does = host_[access.stream] >= access.time;
  return host_does || (stream != kHost && streams_[stream][access.stream] >= access.time);
}

Order& order() {
  static Order order;
  return order;
}

}  // namespace anymesh::pretend
