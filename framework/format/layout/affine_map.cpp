#include "framework/format/layout/affine_map.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr size_t kMostPieces = 1 << 16;              // of one parameter
constexpr int64_t kMostElements = int64_t{1} << 60;  // so that no product of ours overflows
constexpr double kLeastScale = 1e-18;                // its powers are numbers of float32

// A loop over a piece's elements, with its steps in the full tensor and in the shard.
struct Loop {
  int64_t count, full_step, shard_step;
  bool operator==(const Loop&) const = default;
};
using Loops = std::vector<Loop>;

// Returns the loops in the order of the full tensor, joined where two are one.
Loops joined_loops(Loops loops) {
  std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
  std::ranges::stable_sort(loops, std::greater<>(), &Loop::full_step);
  Loops result;
  for (const Loop& inner : loops) {
    const bool joins = !result.empty() &&
                       result.back().full_step == inner.count * inner.full_step &&
                       result.back().shard_step == inner.count * inner.shard_step;
    if (joins) {
      result.back() = {result.back().count * inner.count, inner.full_step, inner.shard_step};
    } else {
      result.push_back(inner);
    }
  }
  return result;
}

// A piece as the file has it.
struct Block {
  Value value;
  int64_t numel = 0, full_begin = 0, shard_begin = 0;
  Loops loops;
  std::vector<int64_t> locations;
  double scale = 1;
};

// An offset and strides within a tensor.
struct View {
  int64_t begin;
  std::vector<int64_t> strides;
};

View read_view(const Value& value, const Shape& shape, int64_t tensor_numel) {
  if (value.size() != 2) value.fail("an offset and strides");
  View view{value.at(0).as_int(), value.at(1).as_ints()};
  if (view.strides.size() != shape.size())
    value.at(1).fail(std::to_string(shape.size()) + " strides");
  if (numel(shape) == 0) return view;
  int64_t last = view.begin;
  bool inside = last >= 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t extent = 0;
    inside = inside && (shape[d] == 1 || view.strides[d] > 0) &&
             !__builtin_mul_overflow(shape[d] - 1, view.strides[d], &extent) &&
             !__builtin_add_overflow(last, extent, &last);
  }
  if (inside && last < tensor_numel) return view;
  throw DamagedFile(value.where() + ": offset " + std::to_string(view.begin) + " and strides " +
                    to_string(view.strides) + " of a piece of shape " + to_string(shape) +
                    " do not lie in a tensor of " + std::to_string(tensor_numel) + " elements");
}

Block read_block(const Value& value, int64_t full_numel, int64_t shard_numel) {
  const Shape shape = value.at(keys::kShape).as_shape();
  const View full = read_view(value.at(keys::kSource), shape, full_numel),
             shard = read_view(value.at(keys::kDest), shape, shard_numel);
  Block block{value, numel(shape), full.begin, shard.begin, {}, {}, 1};
  Loops loops;
  for (size_t d = 0; d < shape.size(); ++d)
    loops.push_back({shape[d], full.strides[d], shard.strides[d]});
  if (block.numel > 0) block.loops = joined_loops(std::move(loops));
  block.locations = value.at(keys::kLocations).as_ints();
  std::ranges::sort(block.locations);
  const Value scale = value.find(keys::kScale).value_or(1.0);
  block.scale = scale.as_double();
  if (!(kLeastScale < std::abs(block.scale) && std::abs(block.scale) < 1 / kLeastScale))
    scale.fail("a factor that float32 can divide by");
  return block;
}

// One rank's shape and blocks.
struct Shard {
  Value value;
  Shape shape;
  std::vector<Block> blocks;
};

// The full tensor seen as [outer, mid, inner].
struct Axis {
  Axis(std::span<const int64_t> shape, size_t d)
      : outer(numel(shape.first(d))), mid(shape[d]), inner(numel(shape.subspan(d + 1))) {}
  int64_t outer, mid, inner;
};

// Returns the block as a slice of mid; a width of -1 if it is none.
CutPiece slice_of(const Block& block, const Axis& axis, int64_t shard_mid) {
  const auto [outer, mid, inner] = axis;
  const bool whole_rows = block.numel % (outer * inner) == 0 && block.full_begin % inner == 0 &&
                          block.shard_begin % inner == 0;
  const int64_t width = block.numel / (outer * inner);
  const bool is_slice =
      whole_rows &&
      block.loops == joined_loops({{outer, mid * inner, shard_mid * inner}, {width * inner, 1, 1}});
  return {block.full_begin / inner, block.shard_begin / inner, is_slice ? width : -1, block.scale,
          false};
}

using Pieces = std::vector<std::vector<CutPiece>>;  // [rank], in the file's order

// Returns the blocks as slices along a dim; empty if some are not.
Pieces slices_along(size_t dim, const Shape& full, const std::vector<Shard>& shards) {
  const Axis axis(full, dim);
  Pieces pieces;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    Shape like_full = shards[rank].shape;
    if (like_full.size() != full.size()) return {};
    const int64_t shard_mid = like_full[dim];
    like_full[dim] = axis.mid;
    if (like_full != full) return {};
    auto& own = pieces.emplace_back();
    for (const Block& block : shards[rank].blocks) {
      CutPiece piece{0, 0, 0, block.scale, false};
      if (block.numel > 0) piece = slice_of(block, axis, shard_mid);
      if (piece.width < 0) return {};
      piece.is_copy = block.numel > 0 && block.locations[0] != static_cast<int64_t>(rank);
      own.push_back(piece);
    }
  }
  return pieces;
}

// Returns a rank's pieces by their place in the shard. Throws unless they fill it.
std::vector<CutPiece> filling(std::vector<CutPiece> pieces, int64_t shard_mid, const Value& shard) {
  std::erase_if(pieces, [](const CutPiece& piece) { return piece.width == 0; });
  std::ranges::sort(pieces, {}, &CutPiece::shard_begin);
  int64_t next = 0;
  for (const CutPiece& piece : pieces) {
    if (piece.shard_begin != next) break;
    next += piece.width;
  }
  if (next == shard_mid) return pieces;
  throw DamagedFile(shard.where() + ": its pieces hold index " + std::to_string(next) +
                    " of the shard twice or not at all");
}

// Throws unless each index of the full dim is on the ranks that its pieces' locations name, and on
// at least one.
void check_holders(const Pieces& pieces, const std::vector<Shard>& shards, int64_t mid,
                   const Value& map) {
  struct Edge {
    int64_t at;
    bool begins;
    size_t rank;
    const Block* block;
  };
  std::vector<Edge> edges;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    for (size_t i = 0; i < pieces[rank].size(); ++i) {
      const auto& [begin, own, width, scale, is_copy] = pieces[rank][i];
      if (width == 0) continue;
      edges.push_back({begin, true, rank, &shards[rank].blocks[i]});
      edges.push_back({begin + width, false, rank, nullptr});
    }
  }
  std::ranges::sort(edges, {}, [](const Edge& edge) { return std::pair(edge.at, edge.begins); });
  std::map<int64_t, const Block*> holders;
  int64_t reached = 0;
  for (size_t i = 0; i < edges.size();) {
    const int64_t at = edges[i].at;
    if (holders.empty() && at != reached) break;
    for (; i < edges.size() && edges[i].at == at; ++i) {
      const auto& [place, begins, rank, block] = edges[i];
      if (!begins) {
        holders.erase(static_cast<int64_t>(rank));
      } else if (!holders.emplace(rank, block).second) {
        throw DamagedFile(block->value.where() + ": rank " + std::to_string(rank) + " has index " +
                          std::to_string(at) + " of the full tensor twice");
      }
    }
    reached = at;
    std::vector<int64_t> ranks;
    for (const auto& [rank, block] : holders) ranks.push_back(rank);
    for (const auto& [rank, block] : holders)
      if (block->locations != ranks)
        block->value.at(keys::kLocations)
            .fail("ranks " + to_string(ranks) + ", which have index " + std::to_string(at) +
                  " of the full tensor");
  }
  if (reached != mid)
    throw DamagedFile(map.where() + ": no rank has index " + std::to_string(reached) +
                      " of the full tensor");
}

// Returns the pieces as parts with widths, if each rank's k-th piece is its share of the k-th part;
// else as pieces.
CutRule rule_of(int dim, const Shape& full, const Pieces& listed, Pieces pieces) {
  CutRule rule{.dim = dim};
  const size_t tp_size = listed.size(), parts = listed[0].size();
  const std::vector<CutPiece> all = {{0, 0, full[static_cast<size_t>(dim)]}};
  const auto has_all = [&](const std::vector<CutPiece>& own) {
    return own.size() == 1 && own[0].width == all[0].width && own[0].scale == 1;
  };
  if (std::ranges::all_of(pieces, has_all)) return {.replicated = true};
  const auto equal_count = [&](const auto& own) { return own.size() == parts; };
  const auto is_plain = [](const CutPiece& piece) { return piece.scale == 1 && !piece.is_copy; };
  bool plain = std::ranges::all_of(listed, equal_count);
  for (const auto& own : pieces) plain = plain && std::ranges::all_of(own, is_plain);
  if (plain) {
    for (size_t part = 0; part < parts; ++part) {
      auto& widths = rule.widths.emplace_back();
      for (size_t rank = 0; rank < tp_size; ++rank) widths.push_back(listed[rank][part].width);
      if (parts > 1) rule.parts.push_back(sum_of(widths));
    }
    for (size_t rank = 0; rank < tp_size; ++rank)
      plain =
          plain && ShardLayout::make(full, rule, static_cast<int>(tp_size), static_cast<int>(rank))
                           .pieces() == pieces[rank];
    if (plain) return rule;
  }
  return {.dim = dim, .pieces = std::move(pieces)};
}

std::vector<Shard> read_shards(const Value& map, const Shape& full, int64_t& budget) {
  const Value ranks = map.at(keys::kRanks);
  std::vector<Shard> shards;
  size_t pieces = 0;
  const auto spend = [&](size_t size) {
    budget -= static_cast<int64_t>(size) + 1;
    if (budget < 0 || ++pieces > kMostPieces) map.refuse("smaller affine maps");
  };
  for (const auto& [rank, value] : ranks.entries()) {
    if (rank.as_int() != static_cast<int64_t>(shards.size()))
      ranks.fail("rank " + std::to_string(shards.size()) + " before rank " + rank.found());
    Shard& shard = shards.emplace_back(Shard{value, value.at(keys::kShardShape).as_shape(), {}});
    if (shard.shape.empty()) shard.shape = {1};
    spend(shard.shape.size());
    const int64_t shard_numel = numel(shard.shape);
    if (shard_numel > kMostElements) value.at(keys::kShardShape).fail("a smaller tensor");
    for (const Value& piece : value.at(keys::kPieces).items()) {
      spend(piece.at(keys::kShape).size() + piece.at(keys::kLocations).size());
      shard.blocks.push_back(read_block(piece, numel(full), shard_numel));
      if (shard.blocks.back().locations.empty()) piece.at(keys::kLocations).fail("a rank");
    }
  }
  if (shards.empty()) ranks.fail("at least one rank");
  return shards;
}

}  // namespace

AffineMap AffineMap::from_value(const Value& value, int64_t& budget) {
  const Value logical = value.at(keys::kLogicalShape);
  AffineMap map{logical.as_shape(), {}, 0};
  Shape full = map.full;
  if (full.empty()) full = {1};
  if (numel(full) > kMostElements) logical.fail("a smaller tensor");
  const std::vector<Shard> shards = read_shards(value, full, budget);
  map.tp_size = shards.size();
  if (numel(full) == 0) {
    for (const Shard& shard : shards)
      if (shard.shape != full) shard.value.refuse("a shard without elements, like the whole");
    map.cut.replicated = true;
    return map;
  }
  Pieces listed;
  size_t dim = 0;
  for (; dim < full.size() && listed.empty(); ++dim) listed = slices_along(dim, full, shards);
  if (listed.empty()) value.refuse("pieces that are slices along one dim");
  const size_t cut = dim - 1;
  Pieces pieces;
  for (size_t rank = 0; rank < shards.size(); ++rank)
    pieces.push_back(filling(listed[rank], shards[rank].shape[cut], shards[rank].value));
  check_holders(listed, shards, full[cut], value);
  map.cut = rule_of(static_cast<int>(cut), full, listed, std::move(pieces));
  map.cut.map = value.where();
  if (map.full.empty() && !map.cut.replicated) logical.fail("at least one dim, as it is cut");
  return map;
}

MergeShape AffineMap::merge(const std::string& name, std::span<const Shape> shards,
                            std::optional<int64_t> vocabulary) const {
  if (shards.size() != tp_size)
    throw DamagedFile(cut.map + ": is a map for tp " + std::to_string(tp_size) + ", but " + name +
                      " has " + std::to_string(shards.size()) + " shards");
  for (size_t rank = 0; rank < tp_size; ++rank) {
    const ShardLayout layout =
        ShardLayout::make(full, cut, static_cast<int>(tp_size), static_cast<int>(rank));
    if (numel(shards[rank]) == layout.shard_numel()) continue;
    throw DamagedFile(name + ": its shard of tp rank " + std::to_string(rank) + " has the shape " +
                      to_string(shards[rank]) + ", its affine map says " +
                      to_string(layout.shard_shape()));
  }
  MergeShape merged{full, cut};
  if (!vocabulary || full.empty() || *vocabulary >= full[0]) return merged;
  if (cut.replicated || cut.dim != 0 || cut.parts.size() > 1 || *vocabulary < 0)
    throw DamagedFile(name + ": is a vocabulary of " + std::to_string(*vocabulary) +
                      " rows, which can only be cut by rows, but its affine map says otherwise");
  merged.cut.padded = full[0];
  merged.full[0] = *vocabulary;
  return merged;
}

double factor_of_state(double scale, std::string_view state) {
  if (scale == 1 || state == kFp32State) return scale;
  if (state == kExpAvgState) return 1 / scale;
  if (state == kExpAvgSqState) return 1 / (scale * scale);
  throw Unreadable(std::string(state) + ": nothing says how the affine map's scale of " +
                   std::to_string(scale) + " changes this state");
}

}  // namespace anymesh
