#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "framework/format/torch_file.h"

namespace anymesh {

// A copy of a rank's state. Its memory is reused from save to save, and grows only if the next save
// needs more:
//
//   Snapshot snapshot;                               // takes no memory yet
//   const Value still = snapshot.hold(value, read);  // the same value, its tensors in the snapshot
//   snapshot.take();                                 // copies them; then the originals may change
//   write_torch_file(path, still);                   // the state when take() ran
//
// Not thread-safe, but take() may run on any thread.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Returns `value` with its tensors in the snapshot, to be read after take() and until reset().
  // Tensors that share memory still do. Tensors that are not in `read` are not copied.
  Value hold(const Value& value, const std::unordered_set<const ByteSource*>& read);
  // Copies the tensors. Throws std::runtime_error if there is no memory, and rethrows errors from
  // reading the originals.
  void take();
  // Forgets the tensors, and keeps the memory.
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
  std::unordered_map<const ByteSource*, BytesPtr> held_;  // keyed by the original
};

}  // namespace anymesh
