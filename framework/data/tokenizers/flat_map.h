#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace anymesh {

// Maps 64-bit keys to small values in one block of memory, for lookups that miss the cache once.
// The key ~0 is not allowed. Nothing is ever removed.
template <class Value>
class FlatMap {
 public:
  explicit FlatMap(size_t expected = 0)
      : slots_(std::bit_ceil(2 * expected + 16)), mask_(slots_.size() - 1) {}

  size_t size() const { return size_; }

  // Returns null if there is no such key.
  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[place(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

  // Returns the key's value, a new one if there was none. It moves with the next insertion.
  Value& operator[](uint64_t key) {
    if (2 * size_ >= slots_.size()) grow();
    Slot& slot = slots_[place(key)];
    size_ += slot.key == kNone;
    slot.key = key;
    return slot.value;
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Slot {
    uint64_t key = kNone;
    Value value{};
  };

  // Returns the slot that has the key, or where it belongs.
  size_t place(uint64_t key) const {
    const uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    size_t at = (mixed ^ mixed >> 32) & mask_;
    while (slots_[at].key != key && slots_[at].key != kNone) at = (at + 1) & mask_;
    return at;
  }

  void grow() {
    FlatMap larger(slots_.size());
    for (const Slot& slot : slots_)
      if (slot.key != kNone) larger[slot.key] = slot.value;
    *this = std::move(larger);
  }

  std::vector<Slot> slots_;
  size_t mask_;
  size_t size_ = 0;
};

}  // namespace anymesh
