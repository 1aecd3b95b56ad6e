#include "framework/format/layout/shard_layout.h"

#include <algorithm>
#include <array>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Returns widths[part][rank], which are even unless the rule gives them.
std::vector<std::vector<int64_t>> cut_widths(const CutRule& rule, int64_t dim_size, int tp_size,
                                             const std::string& name) {
  const std::vector<int64_t> parts =
      rule.parts.empty() ? std::vector{rule.padded ? rule.padded : dim_size} : rule.parts;
  const int64_t total = sum_of(parts);
  if (rule.padded ? rule.parts.size() > 1 || rule.padded < dim_size : total != dim_size) {
    throw DamagedFile(name + ": parts of " + to_string(parts) + " do not make up " +
                      std::to_string(dim_size));
  }
  std::vector<std::vector<int64_t>> widths = rule.widths;
  if (widths.empty()) {
    for (const int64_t part : parts) {
      if (part % tp_size != 0) {
        throw DamagedFile(name + ": " + std::to_string(part) +
                          " is not divisible by the tensor-parallel size " +
                          std::to_string(tp_size));
      }
      widths.emplace_back(tp_size, part / tp_size);
    }
  }
  if (widths.size() != parts.size())
    throw DamagedFile(name + ": has widths for " + std::to_string(widths.size()) + " parts");
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t sum = sum_of(widths[part]);
    const bool negative =
        std::any_of(widths[part].begin(), widths[part].end(), [](int64_t w) { return w < 0; });
    if (widths[part].size() != static_cast<size_t>(tp_size) || negative || sum != parts[part]) {
      throw DamagedFile(name + ": widths " + to_string(widths[part]) + " of " +
                        std::to_string(tp_size) + " ranks do not make up " +
                        std::to_string(parts[part]));
    }
  }
  return widths;
}

// Throws unless the rule gives pieces for this many ranks.
void check_ranks(const CutRule& rule, int tp_size) {
  if (rule.pieces.size() == static_cast<size_t>(tp_size)) return;
  throw Unreadable(rule.map + ": says how tp " + std::to_string(rule.pieces.size()) +
                   " cuts the tensor, but not how another tp size does");
}

}  // namespace

CutRule CutRule::even() const {
  if (!pieces.empty()) check_ranks(*this, 0);
  return {.replicated = replicated, .dim = dim, .parts = parts, .padded = padded};
}

int64_t sum_of(std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes)
    if (__builtin_add_overflow(sum, size, &sum))
      throw DamagedFile("sizes " + to_string(sizes) + " add up to more than 2^63");
  return sum;
}

ShardLayout ShardLayout::whole(std::span<const int64_t> shape) {
  ShardLayout layout;
  layout.shard_shape_.assign(shape.begin(), shape.end());
  layout.inner_ = numel(shape);
  layout.pieces_ = {{0, 0, 1}};
  return layout;
}

ShardLayout ShardLayout::make(std::span<const int64_t> full_shape, const CutRule& rule, int tp_size,
                              int tp_rank) {
  const std::string name = "tensor of shape " + to_string(full_shape);
  if (tp_size < 1 || tp_rank < 0 || tp_rank >= tp_size) {
    throw DamagedFile(name + ": there is no rank " + std::to_string(tp_rank) + " of " +
                      std::to_string(tp_size));
  }
  if (rule.replicated || (full_shape.empty() && tp_size == 1)) return whole(full_shape);
  if (rule.dim < 0 || static_cast<size_t>(rule.dim) >= full_shape.size()) {
    throw DamagedFile(name + ": cannot be cut along dim " + std::to_string(rule.dim));
  }
  const auto dim = static_cast<size_t>(rule.dim);
  ShardLayout layout;
  layout.shard_shape_.assign(full_shape.begin(), full_shape.end());
  layout.outer_ = numel(full_shape.first(dim));
  layout.full_mid_ = full_shape[dim];
  layout.inner_ = numel(full_shape.subspan(dim + 1));
  layout.shard_mid_ = 0;
  if (!rule.pieces.empty()) {
    check_ranks(rule, tp_size);
    layout.add_pieces(rule.pieces[static_cast<size_t>(tp_rank)]);
    layout.shard_shape_[dim] = layout.shard_mid_;
    return layout;
  }
  int64_t part_begin = 0;
  for (const auto& widths : cut_widths(rule, full_shape[dim], tp_size, name)) {
    const auto rank = static_cast<size_t>(tp_rank);
    const int64_t begin = part_begin + sum_of(std::span(widths).first(rank)), width = widths[rank];
    layout.add_pieces(std::array{CutPiece{begin, layout.shard_mid_, width}});
    part_begin += sum_of(widths);
  }
  layout.shard_shape_[dim] = layout.shard_mid_;
  numel(layout.shard_shape_);
  if (tp_size == 1 && layout.shard_mid_ == layout.full_mid_) return whole(full_shape);
  return layout;
}

void ShardLayout::add_pieces(std::span<const CutPiece> pieces) {
  for (CutPiece piece : pieces) {
    shard_mid_ += piece.width;
    piece.width = std::clamp<int64_t>(full_mid_ - piece.full_begin, 0, piece.width);
    if (piece.width > 0) pieces_.push_back(piece);  // the rest is padding
  }
}

ShardLayout ShardLayout::only(size_t piece) const {
  ShardLayout layout = *this;
  layout.pieces_ = {pieces_[piece]};
  return layout;
}

ShardLayout ShardLayout::block(int index, int count) const {
  if (count == 1) return *this;
  if (shard_shape_.empty() || shard_shape_[0] % count != 0)
    throw DamagedFile("tensor of shape " + to_string(shard_shape_) + ": " + std::to_string(count) +
                      " ranks cannot share what dim 0 counts");
  ShardLayout layout = *this;
  if (outer_ == 1) {  // uncut: its rows become the outer dims
    layout.outer_ = shard_shape_[0];
    layout.full_mid_ = layout.shard_mid_ = 1;
    layout.inner_ = shard_numel() / std::max<int64_t>(1, shard_shape_[0]);
  }
  layout.shard_shape_[0] /= count;
  layout.outer_ /= count;
  layout.outer_begin_ = index * layout.outer_;
  return layout;
}

int64_t ShardLayout::shard_position(int64_t full_offset) const {
  const int64_t row = full_mid_ * inner_;
  if (row == 0) return 0;
  const int64_t base = full_offset / row * shard_mid_ * inner_;
  const int64_t rest = full_offset % row;
  for (const CutPiece& piece : pieces_) {
    const int64_t begin = piece.full_begin * inner_, end = begin + piece.width * inner_;
    if (rest < end) return base + piece.shard_begin * inner_ + std::max<int64_t>(rest - begin, 0);
  }
  return base + shard_mid_ * inner_;
}

}  // namespace anymesh
