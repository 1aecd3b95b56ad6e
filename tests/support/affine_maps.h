#pragma once

#include <cmath>
#include <functional>

#include "framework/format/layout/names.h"
#include "tests/support/fixtures.h"

namespace anymesh {

// Affine maps as DeepSpeed's AutoTP writes them, and their meaning element by element, which is
// independent of the program.

// A rank's slice of the cut dim.
struct MapSlice {
  int64_t begin, width;
  std::vector<int64_t> locations;
  double scale = 1;
};
using MapSlices = std::vector<std::vector<MapSlice>>;  // [rank]

inline std::vector<int64_t> row_major(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

inline Value map_view(int64_t offset, const std::vector<int64_t>& strides) {
  return Value::list({offset, Value::list_of(strides)});
}

inline Value map_piece(const Shape& shape, Value source, Value dest,
                       const std::vector<int64_t>& locations) {
  return Value::dict({{keys::kShape, Value::list_of(shape)},
                      {keys::kSource, std::move(source)},
                      {keys::kDest, std::move(dest)},
                      {keys::kLocations, Value::list_of(locations)}});
}

inline Value map_rank(const Shape& shard, const std::vector<Value>& pieces) {
  return Value::dict(
      {{keys::kShardShape, Value::list_of(shard)}, {keys::kPieces, Value::list(pieces)}});
}

inline Value map_of(const Shape& full, const std::vector<Value>& ranks) {
  std::vector<Value::Entry> entries;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    entries.emplace_back(static_cast<int64_t>(rank), ranks[rank]);
  return Value::dict(
      {{keys::kLogicalShape, Value::list_of(full)}, {keys::kRanks, Value::dict(entries)}});
}

// Each rank's shard has its slices of `dim`, one after the other.
inline Value map_of_slices(const Shape& full, size_t dim, const MapSlices& slices) {
  const auto full_strides = row_major(full);
  std::vector<Value> ranks;
  for (const auto& own : slices) {
    Shape shard = full, shape = full;
    shard[dim] = 0;
    for (const MapSlice& slice : own) shard[dim] += slice.width;
    const auto strides = row_major(shard);
    std::vector<Value> pieces;
    int64_t at = 0;
    for (const MapSlice& slice : own) {
      shape[dim] = slice.width;
      Value piece = map_piece(shape, map_view(slice.begin * full_strides[dim], full_strides),
                              map_view(at * strides[dim], strides), slice.locations);
      if (slice.scale != 1) piece.set(keys::kScale, slice.scale);
      pieces.push_back(piece);
      at += slice.width;
    }
    ranks.push_back(map_rank(shard, pieces));
  }
  return map_of(full, ranks);
}

inline void for_each_index(const Shape& shape, const std::function<void(const Shape&)>& fn) {
  if (numel(shape) == 0) return;
  Shape index(shape.size(), 0);
  for (int64_t i = 0; i < numel(shape); ++i) {
    fn(index);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

// Returns a rank's shard of `full`, whose weights have the pieces' scales.
inline std::vector<float> shard_by_map(const Value& map, int64_t rank,
                                       const std::vector<float>& full, double power = 1) {
  const Value own = map.at(keys::kRanks).find(rank);
  std::vector<float> shard(static_cast<size_t>(numel(own.at(keys::kShardShape).as_shape())), -1);
  for (const Value& piece : own.at(keys::kPieces).items()) {
    const Value source = piece.at(keys::kSource), dest = piece.at(keys::kDest);
    const auto from = source.at(1).as_ints(), to = dest.at(1).as_ints();
    const auto factor =
        static_cast<float>(std::pow(piece.find(keys::kScale).value_or(1.0).as_double(), power));
    for_each_index(piece.at(keys::kShape).as_shape(), [&](const Shape& index) {
      int64_t a = source.at(0).as_int(), b = dest.at(0).as_int();
      for (size_t d = 0; d < index.size(); ++d) {
        a += index[d] * from[d];
        b += index[d] * to[d];
      }
      shard.at(static_cast<size_t>(b)) = full.at(static_cast<size_t>(a)) * factor;
    });
  }
  return shard;
}

}  // namespace anymesh
