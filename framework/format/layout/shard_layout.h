#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "framework/format/torch_file/value.h"

namespace anymesh {

// How tensor parallelism cuts one parameter, i.e. which elements of the full tensor make up a
// rank's shard.
//
//   replicated                    every rank holds the whole
//   dim 0                         rows are cut evenly (column-parallel weights, biases, vocabulary)
//   dim 1                         columns are cut evenly (row-parallel weights)
//   dim 0, parts {f, f}           each part is cut by itself (SwiGLU: [gate; up] -> [gate_r; up_r])
//   ... with widths[part][rank]   the same with the given, possibly uneven, widths
//   dim 0, padded 512             fewer rows than the shards have together: the rest is padding
//   dim 0, pieces[rank]           the given pieces of dim 0, in any order; ranks may share some
struct CutPiece {  // consecutive indices of the cut dim, in the full tensor and in a shard
  int64_t full_begin = 0, shard_begin = 0, width = 0;
  double scale = 1;      // the shard has the full tensor's elements times this
  bool is_copy = false;  // a lower rank has the same elements
  bool operator==(const CutPiece&) const = default;
};
struct CutRule {
  bool replicated = false;
  int dim = 0;
  std::vector<int64_t> parts;                 // sizes along dim; empty = a single part
  std::vector<std::vector<int64_t>> widths;   // [part][rank]; empty = even
  int64_t padded = 0;                         // size of dim over all shards; 0 = the full tensor's
  std::vector<std::vector<CutPiece>> pieces;  // [rank], by shard_begin; empty = parts and widths
  std::string map;                            // names the affine map that gave the pieces

  // Returns the rule for any tp size, which cuts each part evenly. Throws Unreadable if there are
  // pieces: they are known for one tp size alone.
  CutRule even() const;
};

int64_t sum_of(std::span<const int64_t> sizes);  // throws beyond 2^63

// The arithmetic for merging shards into the full tensor and for slicing it for any tp size. The
// full tensor is seen as [outer, mid, inner] and cut along mid. A shard is a list of pieces of mid,
// which ascend in the shard. They ascend in the full tensor too, unless the rule gives them.
class ShardLayout {
 public:
  // Throws if sizes do not divide, or parts or widths do not add up.
  static ShardLayout make(std::span<const int64_t> full_shape, const CutRule& rule, int tp_size,
                          int tp_rank);

  const Shape& shard_shape() const { return shard_shape_; }
  int64_t shard_numel() const { return outer_ * shard_mid_ * inner_; }
  int64_t full_numel() const { return outer_ * full_mid_ * inner_; }

  // Calls fn(full_offset, shard_offset, n) for the runs that make up shard elements [begin, begin +
  // count), in ascending order of the shard's offsets. Skips elements that the full tensor does not
  // have (vocabulary padding).
  template <typename Fn>
  void for_each_run(int64_t begin, int64_t count, Fn&& fn) const;

  // Returns the number of shard elements before the first one that is at `full_offset` or later in
  // the full tensor. The pieces must ascend in both.
  int64_t shard_position(int64_t full_offset) const;

  const std::vector<CutPiece>& pieces() const { return pieces_; }  // not if the tensor is uncut
  ShardLayout only(size_t piece) const;                            // as if it had no other piece
  // Returns block `index` of `count` equal ones along dim 0, which tp must not cut: the experts of
  // an ep rank. Throws if it does not divide.
  ShardLayout block(int index, int count) const;

 private:
  // Returns the layout of an uncut tensor: one run for any shape.
  static ShardLayout whole(std::span<const int64_t> shape);
  void add_pieces(std::span<const CutPiece> pieces);

  int64_t outer_begin_ = 0;  // of a block
  int64_t outer_ = 1, full_mid_ = 1, shard_mid_ = 1, inner_ = 1;
  Shape shard_shape_;
  std::vector<CutPiece> pieces_;
};

template <typename Fn>
void ShardLayout::for_each_run(int64_t begin, int64_t count, Fn&& fn) const {
  const int64_t end = begin + count;
  const int64_t row = shard_mid_ * inner_;
  if (count <= 0 || row == 0) return;
  for (int64_t o = begin / row; o * row < end; ++o) {
    for (const CutPiece& piece : pieces_) {
      const int64_t start = o * row + piece.shard_begin * inner_;
      const int64_t first = std::max(begin, start);
      const int64_t last = std::min(end, start + piece.width * inner_);
      if (first >= last) continue;
      fn(((outer_begin_ + o) * full_mid_ + piece.full_begin) * inner_ + (first - start), first,
         last - first);
    }
  }
}

}  // namespace anymesh
