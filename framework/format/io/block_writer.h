#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "framework/format/io/direct_file.h"
#include "framework/format/io/write_files.h"

namespace anymesh {

inline constexpr uint64_t kFileBlock = 2 << 20;

// A written range of a tensor's bytes, by its place in the file.
struct TensorExtent {
  uint64_t offset = 0, size = 0;
  uint32_t crc = 0;
};

// Writes a file in blocks. Threads or processes write them in any order. Blocks of kFileBlock bytes
// cover the file up to the last whole sector of its last tensor; only the last of them may be
// shorter. The rest of the file, or all of a small one, is one more block, which stays in memory
// until the CRCs are known.
class BlockWriter {
 public:
  // `file` must outlive this object. Without `compare`, an existing file is overwritten unread.
  explicit BlockWriter(const StreamedFile& file, bool compare = true);

  size_t count() const { return block_of(layout_.size) + 1; }
  uint64_t begin_of(size_t block) const { return std::min(block * kFileBlock, direct_end_); }
  uint64_t end_of(size_t block) const {
    return block + 1 < count() ? begin_of(block + 1) : layout_.size;
  }

  // `buffer` has kFileBlock bytes and is aligned to sectors.
  void write(size_t block, std::span<std::byte> buffer);
  // Returns one extent for each tensor in the blocks written here. The blocks must be contiguous.
  std::vector<TensorExtent> extents() const;
  // Writes the texts that depend on CRCs, then the last block. `extents` cover all blocks, in any
  // order, including blocks that other processes wrote.
  void finish(std::vector<TensorExtent> extents);

  uint64_t kept() const { return kept_; }
  uint32_t crc() const { return crc_; }                    // the file's, after finish()
  double write_seconds() const { return write_seconds_; }  // summed over threads

 private:
  size_t block_of(uint64_t offset) const {
    return offset < direct_end_ ? offset / kFileBlock : (direct_end_ + kFileBlock - 1) / kFileBlock;
  }
  void fill(size_t block, uint64_t begin, std::span<std::byte> out);
  size_t piece_at(uint64_t offset) const;
  std::vector<uint32_t> tensor_crcs(std::vector<TensorExtent> extents) const;
  void put(std::span<const std::byte> bytes, uint64_t offset);
  void write_timed(const std::function<void()>& write);

  const StreamedFile& file_;
  const FileLayout& layout_ = file_.layout;
  bool compare_;
  uint64_t direct_end_ = 0, kept_ = 0;
  uint32_t crc_ = 0;
  std::atomic<double> write_seconds_ = 0;
  std::vector<std::vector<TensorExtent>> extents_;  // [piece][block of the piece]
  std::once_flag opened_;
  std::unique_ptr<DirectFile> out_;
  std::vector<std::byte> tail_;  // the last block
};

// Calls fn(i, buffer) for i in [0, count) from `threads` threads. A buffer has kFileBlock bytes.
void for_blocks(size_t count, int threads,
                const std::function<void(size_t, std::span<std::byte>)>& fn);

// One of `count` ranges of a file's blocks, of about equal length.
struct FilePart {
  int index = 0, count = 1;
  bool is_last() const { return index + 1 == count; }
};

// Returns how many parts are worth it for a file of `size` bytes: at most one a rank, and each has
// at least 8 MiB.
int parts_worth(uint64_t size, int ranks);

// A new file that several processes write, one part each. All pass the same StreamedFile. The CRCs
// of the parts are combined, so that no process reads another's bytes.
//
//   SharedFile file(streamed_torch_file(path, value), {rank, size});
//   file.write(threads);
//   ...                                         // gather all parts' written() on the last
//   if (part.is_last()) file.finish(all);       // texts with CRCs, last block
class SharedFile {
 public:
  SharedFile(StreamedFile file, FilePart part);

  // Makes write() read change(tensor), with as many bytes, in place of each tensor of this part.
  void replace_tensors(const std::function<BytesPtr(const BytesPtr& tensor)>& change);
  // Calls wrote(bytes) after each block, from any thread.
  void write(int threads, const std::function<void(uint64_t)>& wrote = nullptr);
  std::vector<TensorExtent> written() const { return blocks_.extents(); }
  void finish(std::vector<TensorExtent> all) { blocks_.finish(std::move(all)); }

  const std::filesystem::path& path() const { return file_.path; }
  std::string name() const { return file_.path.filename(); }
  uint64_t size() const { return file_.layout.size; }     // of the whole file
  uint64_t part_size() const { return end() - begin(); }  // in bytes
  FilePart part() const { return part_; }
  const BlockWriter& blocks() const { return blocks_; }

 private:
  uint64_t begin() const { return blocks_.begin_of(first_); }
  uint64_t end() const { return first_ < last_ ? blocks_.end_of(last_ - 1) : begin(); }

  StreamedFile file_;
  BlockWriter blocks_;
  FilePart part_;
  size_t first_, last_;  // blocks [first, last)
};

}  // namespace anymesh
