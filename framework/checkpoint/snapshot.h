#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "framework/checkpoint/format/value.h"

namespace anymesh {

// A rank's state as it was, in memory that is used again from save to save and grows only if the
// next one needs more:
//
//   Snapshot snapshot;                               // takes no memory yet
//   const Value still = snapshot.hold(value, read);  // the same value, its tensors in the snapshot
//   snapshot.take();                                 // copies them; then the originals may change
//   write_torch_file(path, still);                   // what was, when take() ran
//
// Not for several threads at once, but take() may run on any.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // To be read once take() is done, and until reset(). What is the same memory stays so. Of tensors
  // that will not be `read` no copy is kept.
  Value hold(const Value& value, const std::unordered_set<const ByteSource*>& read);
  // Throws std::runtime_error if there is no memory, and what reading the originals throws.
  void take();
  // Forgets what is held, and keeps the memory.
  void reset();

 private:
  struct Copy {
    BytesPtr original;
    size_t offset;
  };
  void grow();

  std::span<std::byte> memory_;
  size_t needed_ = 0;
  std::vector<Copy> copies_;
  std::unordered_map<const ByteSource*, BytesPtr> held_;  // by the original
};

}  // namespace anymesh
