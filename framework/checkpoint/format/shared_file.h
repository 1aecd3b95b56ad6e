#pragma once

#include <functional>
#include <unordered_set>
#include <vector>

#include "framework/checkpoint/format/file_blocks.h"

namespace anymesh {

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
