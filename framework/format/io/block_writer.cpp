#include "framework/format/io/block_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "framework/format/io/crc32.h"
#include "framework/util/parallel_for.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

constexpr uint64_t kLargestElement = 8, kLeastPart = 4 * kFileBlock;

uint64_t align_down(uint64_t value, uint64_t unit) { return value / unit * unit; }

// Reads whole elements from the source, as it requires. A block may begin or end inside an element.
void read_bytes(const ByteSource& source, uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const uint64_t head = offset % kLargestElement;
    uint64_t n = align_down(out.size(), kLargestElement);
    if (offset + out.size() == source.size()) n = out.size();
    if (head == 0 && n > 0) {
      source.read(offset, out.first(n));
    } else {
      std::byte element[kLargestElement];
      const uint64_t begin = offset - head, held = std::min(kLargestElement, source.size() - begin);
      n = std::min<uint64_t>(out.size(), held - head);
      source.read(begin, std::span(element, held));
      std::memcpy(out.data(), element + head, n);
    }
    offset += n;
    out = out.subspan(n);
  }
}

// A pool of block buffers, aligned for direct writes and shared by the threads.
class Buffers {
 public:
  using Buffer = std::unique_ptr<std::byte, decltype(&std::free)>;

  Buffer take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      void* memory = std::aligned_alloc(kFileBlock, kFileBlock);
      if (!memory) throw std::bad_alloc();
      madvise(memory, kFileBlock, MADV_HUGEPAGE);  // one piece for the disk's driver, not 512 pages
      return {static_cast<std::byte*>(memory), &std::free};
    }
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void put_back(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

}  // namespace

BlockWriter::BlockWriter(const StreamedFile& file, bool compare) : file_(file), compare_(compare) {
  uint64_t data_end = 0;
  for (const FileLayout::Piece& piece : layout_.pieces)
    if (piece.source) data_end = piece.offset + piece.size();
  if (layout_.size > kFileBlock) direct_end_ = align_down(data_end, DirectFile::kSector);
  for (const FileLayout::Piece& piece : layout_.pieces) {
    const uint64_t last = piece.offset + std::max<uint64_t>(piece.size(), 1) - 1;
    extents_.emplace_back(piece.source ? block_of(last) - block_of(piece.offset) + 1 : 0);
  }
}

void BlockWriter::write(size_t block, std::span<std::byte> buffer) {
  std::call_once(opened_,
                 [&] { out_ = std::make_unique<DirectFile>(file_.path, layout_.size, compare_); });
  const uint64_t begin = begin_of(block);
  if (block + 1 < count()) {
    const auto bytes = buffer.first(end_of(block) - begin);
    fill(block, begin, bytes);
    write_timed([&] { out_->write_blocks(begin, bytes); });
    return;
  }
  tail_.resize(layout_.size - direct_end_);
  fill(block, begin, tail_);
}

void BlockWriter::fill(size_t block, uint64_t begin, std::span<std::byte> out) {
  const uint64_t end = begin + out.size();
  for (size_t i = piece_at(begin); i < layout_.pieces.size(); ++i) {
    const FileLayout::Piece& piece = layout_.pieces[i];
    const uint64_t first = std::max(begin, piece.offset),
                   last = std::min(end, piece.offset + piece.size());
    if (piece.offset >= end) return;
    const auto place = out.subspan(first - begin, last - first);
    if (piece.source) {
      read_bytes(*piece.source, first - piece.offset, place);
      extents_[i][block - block_of(piece.offset)] = {first, place.size(), crc32(place)};
    } else {
      std::memcpy(place.data(), piece.text.data() + (first - piece.offset), place.size());
    }
  }
}

// Returns the index of the piece with the byte at `offset`.
size_t BlockWriter::piece_at(uint64_t offset) const {
  const auto next = std::upper_bound(
      layout_.pieces.begin(), layout_.pieces.end(), offset,
      [](uint64_t at, const FileLayout::Piece& piece) { return at < piece.offset; });
  return static_cast<size_t>(next - layout_.pieces.begin()) - (offset < layout_.size ? 1 : 0);
}

std::vector<TensorExtent> BlockWriter::extents() const {
  std::vector<TensorExtent> written;
  for (const auto& piece : extents_) {
    TensorExtent joined;
    for (const TensorExtent& extent : piece) {
      if (joined.size == 0) joined.offset = extent.offset;
      joined.crc = crc32_combine(joined.crc, extent.crc, extent.size);
      joined.size += extent.size;
    }
    if (joined.size > 0) written.push_back(joined);
  }
  return written;
}

std::vector<uint32_t> BlockWriter::tensor_crcs(std::vector<TensorExtent> extents) const {
  std::ranges::sort(extents, {}, &TensorExtent::offset);
  std::vector<uint32_t> crcs;
  auto next = extents.begin();
  for (const FileLayout::Piece& piece : layout_.pieces) {
    if (!piece.source) continue;
    uint32_t crc = 0;
    uint64_t at = piece.offset;
    const uint64_t end = at + piece.size();
    for (; next != extents.end() && next->offset == at && at < end; at += next++->size)
      crc = crc32_combine(crc, next->crc, next->size);
    if (at != end)
      throw std::logic_error(file_.path.string() + ": nobody wrote the bytes at " +
                             std::to_string(at));
    crcs.push_back(crc);
  }
  return crcs;
}

void BlockWriter::finish(std::vector<TensorExtent> extents) {
  const std::vector<uint32_t> crcs = tensor_crcs(std::move(extents));
  const FileLayout final = file_.with_crcs ? file_.with_crcs(crcs) : layout_;
  if (final.size != layout_.size || final.pieces.size() != layout_.pieces.size())
    throw std::logic_error(file_.path.string() + ": its layout depends on its CRCs");
  auto tensor_crc = crcs.begin();
  for (size_t i = 0; i < final.pieces.size(); ++i) {
    const auto& [offset, text, source] = final.pieces[i];
    const auto bytes = std::as_bytes(std::span(text));
    crc_ = crc32_combine(crc_, source ? *tensor_crc++ : crc32(bytes), final.pieces[i].size());
    if (text != layout_.pieces[i].text) put(bytes, offset);
  }
  write_timed([&] { out_->write(direct_end_, tail_); });
  kept_ = out_->kept();
  out_.reset();
  std::vector<std::byte>().swap(tail_);  // `= {}` would keep its memory
}

// Writes the bytes before direct_end_ to the file, and the rest to the last block in memory.
void BlockWriter::put(std::span<const std::byte> bytes, uint64_t offset) {
  const uint64_t before = std::min(bytes.size(), direct_end_ - std::min(direct_end_, offset));
  if (before > 0) out_->write(offset, bytes.first(before));
  std::ranges::copy(bytes.subspan(before),
                    tail_.begin() + static_cast<ptrdiff_t>(offset + before - direct_end_));
}

void BlockWriter::write_timed(const std::function<void()>& write) {
  const auto start = std::chrono::steady_clock::now();
  write();
  write_seconds_ += seconds_since(start);
}

void for_blocks(size_t count, int threads,
                const std::function<void(size_t, std::span<std::byte>)>& fn) {
  Buffers buffers;
  parallel_for(count, threads, [&](size_t i) {
    Buffers::Buffer buffer = buffers.take();
    fn(i, {buffer.get(), kFileBlock});
    buffers.put_back(std::move(buffer));
  });
}

int parts_worth(uint64_t size, int ranks) {
  return static_cast<int>(std::clamp<uint64_t>(size / kLeastPart, 1, static_cast<uint64_t>(ranks)));
}

SharedFile::SharedFile(StreamedFile file, FilePart part)
    : file_(std::move(file)),
      blocks_(file_, /*compare=*/false),
      part_(part),
      first_(blocks_.count() * static_cast<size_t>(part.index) / static_cast<size_t>(part.count)),
      last_(blocks_.count() * static_cast<size_t>(part.index + 1) /
            static_cast<size_t>(part.count)) {}

void SharedFile::replace_tensors(const std::function<BytesPtr(const BytesPtr&)>& change) {
  for (FileLayout::Piece& piece : file_.layout.pieces)
    if (piece.source && piece.offset < end() && begin() < piece.offset + piece.size())
      piece.source = change(piece.source);
}

void SharedFile::write(int threads, const std::function<void(uint64_t)>& wrote) {
  for_blocks(last_ - first_, threads, [&](size_t i, std::span<std::byte> buffer) {
    const size_t block = first_ + i;
    blocks_.write(block, buffer);
    if (wrote) wrote(blocks_.end_of(block) - blocks_.begin_of(block));
  });
}

}  // namespace anymesh
