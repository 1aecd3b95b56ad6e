#include "framework/checkpoint/format/stream_files.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>

#include "framework/checkpoint/format/crc32.h"
#include "framework/checkpoint/format/parallel_for.h"
#include "framework/checkpoint/format/placed_file.h"
#include "framework/checkpoint/format/stopwatch.h"

namespace anymesh {
namespace {

constexpr uint64_t kBlock = 2 << 20;
constexpr uint64_t kLargestElement = 8;

uint64_t align_down(uint64_t value, uint64_t unit) { return value / unit * unit; }

// Sources are read by whole elements, but a file's block may begin or end inside one.
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

// One file. Up to the last sector of its last tensor it is written block by block; the rest, or all of
// a small file, is the last block, which waits for the CRCs.
class Job {
 public:
  explicit Job(const StreamedFile& file) : file_(file), layout_(file.layout({})) {
    uint64_t data_end = 0;
    for (const FileLayout::Piece& piece : layout_.pieces)
      if (piece.source) data_end = piece.offset + piece.size();
    if (layout_.size > kBlock) direct_end_ = align_down(data_end, PlacedFile::kSector);
    remaining_ = blocks();
    for (const FileLayout::Piece& piece : layout_.pieces) {
      const uint64_t last = piece.offset + std::max<uint64_t>(piece.size(), 1) - 1;
      parts_.emplace_back(piece.source ? block_of(last) - block_of(piece.offset) + 1 : 0);
    }
  }

  uint64_t size() const { return layout_.size; }
  uint64_t kept() const { return kept_; }
  uint32_t crc() const { return crc_; }
  double write_seconds() const { return write_seconds_; }  // of all threads
  size_t blocks() const { return block_of(layout_.size) + 1; }

  // Any order, any thread. The one that does the last block finishes the file.
  void run(size_t block, std::span<std::byte> buffer) {
    std::call_once(opened_,
                   [this] { out_ = std::make_unique<PlacedFile>(file_.path, layout_.size); });
    if (block + 1 == blocks()) {
      const size_t size = layout_.size - direct_end_;
      const bool at_once = block == 0 && size <= buffer.size();
      if (!at_once) kept_tail_.resize(size);
      tail_ = at_once ? buffer.first(size) : std::span(kept_tail_);
      fill(block, direct_end_, tail_);
    } else {
      const uint64_t begin = block * kBlock;
      const auto bytes = buffer.first(std::min(kBlock, direct_end_ - begin));
      fill(block, begin, bytes);
      write_timed([&] { out_->write_blocks(begin, bytes); });
    }
    if (--remaining_ == 0) finish();
  }

 private:
  struct Part {
    uint32_t crc = 0;
    uint64_t size = 0;
  };

  size_t block_of(uint64_t offset) const {
    return offset < direct_end_ ? offset / kBlock : (direct_end_ + kBlock - 1) / kBlock;
  }

  void fill(size_t block, uint64_t begin, std::span<std::byte> out) {
    const uint64_t end = begin + out.size();
    for (size_t i = piece_at(begin); i < layout_.pieces.size(); ++i) {
      const FileLayout::Piece& piece = layout_.pieces[i];
      const uint64_t first = std::max(begin, piece.offset),
                     last = std::min(end, piece.offset + piece.size());
      if (piece.offset >= end) return;
      const auto place = out.subspan(first - begin, last - first);
      if (piece.source) {
        read_bytes(*piece.source, first - piece.offset, place);
        parts_[i][block - block_of(piece.offset)] = {crc32(place), place.size()};
      } else {
        std::memcpy(place.data(), piece.text.data() + (first - piece.offset), place.size());
      }
    }
  }

  // The piece with the byte at `offset`.
  size_t piece_at(uint64_t offset) const {
    const auto next = std::upper_bound(
        layout_.pieces.begin(), layout_.pieces.end(), offset,
        [](uint64_t at, const FileLayout::Piece& piece) { return at < piece.offset; });
    return static_cast<size_t>(next - layout_.pieces.begin()) - (offset < layout_.size ? 1 : 0);
  }

  // The texts that had to wait, then the rest.
  void finish() {
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < parts_.size(); ++i) {
      uint32_t crc = 0;
      for (const Part& part : parts_[i]) crc = crc32_combine(crc, part.crc, part.size);
      if (layout_.pieces[i].source) crcs.push_back(crc);
    }
    const FileLayout final = file_.layout(crcs);
    if (final.size != layout_.size || final.pieces.size() != layout_.pieces.size())
      throw std::logic_error(file_.path.string() + ": its layout depends on its CRCs");
    auto tensor_crc = crcs.begin();
    for (size_t i = 0; i < final.pieces.size(); ++i) {
      const auto& [offset, text, source] = final.pieces[i];
      const auto bytes = std::as_bytes(std::span(text));
      crc_ = crc32_combine(crc_, source ? *tensor_crc++ : crc32(bytes), final.pieces[i].size());
      if (text == layout_.pieces[i].text) continue;
      const uint64_t before = std::min(bytes.size(), direct_end_ - std::min(direct_end_, offset));
      if (before > 0) out_->write(offset, bytes.first(before));
      std::ranges::copy(bytes.subspan(before),
                        tail_.begin() + static_cast<ptrdiff_t>(offset + before - direct_end_));
    }
    write_timed([&] { out_->write(direct_end_, tail_); });
    kept_ = out_->kept();
    out_.reset();
    kept_tail_ = {};
  }

  template <typename Fn>
  void write_timed(Fn&& write) {
    double seconds = 0;
    {
      const Stopwatch timing(seconds);
      write();
    }
    write_seconds_ += seconds;
  }

  const StreamedFile& file_;
  FileLayout layout_;
  uint64_t direct_end_ = 0, kept_ = 0;
  uint32_t crc_ = 0;
  std::atomic<double> write_seconds_ = 0;
  std::vector<std::vector<Part>> parts_;  // [piece][block of the piece]
  std::atomic<size_t> remaining_;
  std::once_flag opened_;
  std::unique_ptr<PlacedFile> out_;
  std::span<std::byte> tail_;
  std::vector<std::byte> kept_tail_;  // until the last block is done, where there are others
};

// Blocks' memory, aligned for direct writes, handed from thread to thread.
class Buffers {
 public:
  using Buffer = std::unique_ptr<std::byte, decltype(&std::free)>;

  Buffer take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      void* memory = std::aligned_alloc(kBlock, kBlock);
      if (!memory) throw std::bad_alloc();
      madvise(memory, kBlock, MADV_HUGEPAGE);  // for the disk's driver one piece, not 512 pages
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

void FileLayout::add(std::string_view text) {
  if (pieces.empty() || pieces.back().source) pieces.push_back({size, "", nullptr});
  pieces.back().text += text;
  size += text.size();
}

void FileLayout::add(BytesPtr source) {
  size += source->size();
  pieces.push_back({size - source->size(), "", std::move(source)});
}

StreamResult stream_files(const std::vector<StreamedFile>& files, int threads) {
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<size_t> first;  // of the blocks of all, that of each file
  size_t blocks = 0;
  for (const StreamedFile& file : files) {
    jobs.push_back(std::make_unique<Job>(file));
    first.push_back(blocks);
    blocks += jobs.back()->blocks();
  }
  Buffers buffers;
  parallel_for(blocks, threads, [&](size_t i) {
    const auto job = static_cast<size_t>(std::ranges::upper_bound(first, i) - first.begin()) - 1;
    Buffers::Buffer buffer = buffers.take();
    jobs[job]->run(i - first[job], {buffer.get(), kBlock});
    buffers.put_back(std::move(buffer));
  });
  StreamResult result;
  for (const auto& job : jobs) {
    result.bytes += job->size();
    result.kept += job->kept();
    result.crcs.push_back(job->crc());
    result.write_seconds += job->write_seconds() / threads;
  }
  return result;
}

}  // namespace anymesh
