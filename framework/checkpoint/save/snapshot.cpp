#include "framework/checkpoint/save/snapshot.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>

#include "framework/util/parallel_for.h"

namespace anymesh {

Snapshot::~Snapshot() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

BytesPtr Snapshot::hold(const BytesPtr& original) {
  BytesPtr& held = held_[original.get()];
  if (held) return held;
  held = std::make_shared<ComputedBytes>(
      original->size(), "a snapshot",
      [this, begin = needed_](uint64_t offset, std::span<std::byte> out) {
        std::ranges::copy(memory_.subspan(begin + offset, out.size()), out.begin());
      });
  copies_.push_back({original, needed_});
  needed_ += original->size();
  return held;
}

void Snapshot::take() {
  if (needed_ > memory_.size()) grow();
  constexpr uint64_t kPiece = 16 << 20;  // bytes that a thread copies at a time
  struct Piece {
    const Copy& copy;
    uint64_t at;
  };
  std::vector<Piece> pieces;
  for (const Copy& copy : copies_)
    for (uint64_t at = 0; at < copy.original->size(); at += kPiece) pieces.push_back({copy, at});
  parallel_for(pieces.size(), at::get_num_threads(), [&](size_t i) {
    const auto& [copy, at] = pieces[i];
    const uint64_t count = std::min(kPiece, copy.original->size() - at);
    copy.original->read(at, memory_.subspan(copy.offset + at, count));
  });
}

void Snapshot::reset() {
  needed_ = 0;
  copies_.clear();
  held_.clear();
}

// Frees the old memory first, whose contents do not matter, so that both never exist at once.
void Snapshot::grow() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  memory_ = {};
  void* memory = mmap(nullptr, needed_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error("--async-save: no memory for a snapshot of " +
                             std::to_string(needed_) + " bytes");
  memory_ = {static_cast<std::byte*>(memory), needed_};
}

}  // namespace anymesh
