#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "framework/checkpoint/format/placed_file.h"
#include "framework/checkpoint/format/stream_files.h"

namespace anymesh {

inline constexpr uint64_t kFileBlock = 2 << 20;

// Bytes of tensors that were written, by their place in the file.
struct TensorExtent {
  uint64_t offset = 0, size = 0;
  uint32_t crc = 0;
};

// A file on its way to the disk in blocks, which threads or processes write in any order. Up to the
// last sector of its last tensor all but the last block are whole ones; the rest, or all of a small
// file, is the last block, which stays in memory until the CRCs are known.
class FileBlocks {
 public:
  // Unless `compare`, what may be there is written over without a look at it.
  explicit FileBlocks(StreamedFile file, bool compare = true);

  size_t count() const { return block_of(layout_.size) + 1; }
  const FileLayout& layout() const { return layout_; }
  uint64_t begin_of(size_t block) const { return std::min(block * kFileBlock, direct_end_); }
  uint64_t end_of(size_t block) const {
    return block + 1 < count() ? begin_of(block + 1) : layout_.size;
  }

  // `buffer` is of kFileBlock bytes and aligned to sectors.
  void write(size_t block, std::span<std::byte> buffer);
  // Of the blocks written here, which must follow each other: of each tensor one.
  std::vector<TensorExtent> extents() const;
  // The texts that had to wait, then the last block. `extents` are those of all blocks, in any
  // order, wherever they were written.
  void finish(std::vector<TensorExtent> extents);

  uint64_t kept() const { return kept_; }
  uint32_t crc() const { return crc_; }                    // of the file, after finish()
  double write_seconds() const { return write_seconds_; }  // of all threads

 private:
  size_t block_of(uint64_t offset) const {
    return offset < direct_end_ ? offset / kFileBlock : (direct_end_ + kFileBlock - 1) / kFileBlock;
  }
  void fill(size_t block, uint64_t begin, std::span<std::byte> out);
  size_t piece_at(uint64_t offset) const;
  std::vector<uint32_t> tensor_crcs(std::vector<TensorExtent> extents) const;
  void put(std::span<const std::byte> bytes, uint64_t offset);
  void write_timed(const std::function<void()>& write);

  StreamedFile file_;
  FileLayout layout_;
  bool compare_;
  uint64_t direct_end_ = 0, kept_ = 0;
  uint32_t crc_ = 0;
  std::atomic<double> write_seconds_ = 0;
  std::vector<std::vector<TensorExtent>> extents_;  // [piece][block of the piece]
  std::once_flag opened_;
  std::unique_ptr<PlacedFile> out_;
  std::vector<std::byte> tail_;  // the last block
};

// Calls fn(i, memory of a block) for i in [0, count) from `threads` threads.
void for_blocks(size_t count, int threads,
                const std::function<void(size_t, std::span<std::byte>)>& fn);

// One of `count` ranges of a file's blocks, all about as long.
struct FilePart {
  int index = 0, count = 1;
  bool is_last() const { return index + 1 == count; }
};

// How many parts are worth it for `size` bytes on so many ranks: each has 8 MiB at least.
int parts_worth(uint64_t size, int ranks);

// A new file that several processes write, each a part. All have the same StreamedFile; CRCs of
// parts add up to those of the whole, so that no process reads what another wrote.
//
//   SharedFile file(streamed_torch_file(path, value), {rank, size});
//   const std::vector<TensorExtent> mine = file.write(threads);
//   ...                                         // all parts are written; their extents go to the last
//   if (part.is_last()) file.finish(all);       // the texts with CRCs, and the end
class SharedFile {
 public:
  SharedFile(StreamedFile file, FilePart part);

  // Which tensors this part reads.
  std::unordered_set<const ByteSource*> sources() const;
  // `wrote` is told of each block's bytes, from any thread.
  std::vector<TensorExtent> write(int threads,
                                  const std::function<void(uint64_t)>& wrote = nullptr);
  void finish(std::vector<TensorExtent> all) { blocks_.finish(std::move(all)); }

  FilePart part() const { return part_; }
  uint64_t begin() const { return blocks_.begin_of(first_); }  // of this part, in bytes
  uint64_t end() const { return first_ < last_ ? blocks_.end_of(last_ - 1) : begin(); }
  const FileBlocks& blocks() const { return blocks_; }

 private:
  FileBlocks blocks_;
  FilePart part_;
  size_t first_, last_;  // blocks [first, last)
};

}  // namespace anymesh
