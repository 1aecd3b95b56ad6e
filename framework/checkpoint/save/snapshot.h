#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "framework/format/io.h"

namespace anymesh {

// A copy of a rank's state. Its memory is reused from save to save, and grows only if the next save
// needs more:
//
//   Snapshot snapshot;                             // takes no memory yet
//   const BytesPtr still = snapshot.hold(tensor);  // the same bytes, to be in the snapshot
//   snapshot.take();                               // copies them; then the originals may change
//   still->read(0, out);                           // the bytes when take() ran
//
// Not thread-safe, but take() may run on any thread.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Returns the copy of a tensor's bytes, to be read after take() and until reset(). Bytes that are
  // held twice are copied once.
  BytesPtr hold(const BytesPtr& original);
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
