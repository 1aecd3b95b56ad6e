#include "framework/checkpoint/format/shared_file.h"

#include <algorithm>

namespace anymesh {
namespace {

constexpr uint64_t kLeastPart = 4 * kFileBlock;

}  // namespace

int parts_worth(uint64_t size, int ranks) {
  return static_cast<int>(std::clamp<uint64_t>(size / kLeastPart, 1, static_cast<uint64_t>(ranks)));
}

SharedFile::SharedFile(StreamedFile file, FilePart part)
    : blocks_(std::move(file), /*compare=*/false),
      part_(part),
      first_(blocks_.count() * static_cast<size_t>(part.index) / static_cast<size_t>(part.count)),
      last_(blocks_.count() * static_cast<size_t>(part.index + 1) /
            static_cast<size_t>(part.count)) {}

std::unordered_set<const ByteSource*> SharedFile::sources() const {
  std::unordered_set<const ByteSource*> read;
  for (const FileLayout::Piece& piece : blocks_.layout().pieces)
    if (piece.source && piece.offset < end() && begin() < piece.offset + piece.size())
      read.insert(piece.source.get());
  return read;
}

std::vector<TensorExtent> SharedFile::write(int threads,
                                            const std::function<void(uint64_t)>& wrote) {
  for_blocks(last_ - first_, threads, [&](size_t i, std::span<std::byte> buffer) {
    const size_t block = first_ + i;
    blocks_.write(block, buffer);
    if (wrote) wrote(blocks_.end_of(block) - blocks_.begin_of(block));
  });
  return blocks_.extents();
}

}  // namespace anymesh
