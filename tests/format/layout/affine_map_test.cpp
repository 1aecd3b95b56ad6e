#include "framework/format/layout/affine_map.h"

#include "framework/util/errors.h"
#include "tests/support/affine_maps.h"

namespace anymesh {
namespace {

AffineMap read(const Value& map, int64_t budget = 1 << 20) {
  return AffineMap::from_value(map.named("model.pt"), budget);
}

std::string refusal(const Value& map) {
  return message_of([&] { read(map); });
}

#define EXPECT_DAMAGED(map, text)               \
  do {                                          \
    EXPECT_THROW(read(map), DamagedFile);       \
    EXPECT_THAT(refusal(map), HasSubstr(text)); \
  } while (false)

// Rows in two halves.
Value halves() { return map_of_slices({8, 3}, 0, {{{0, 4, {0}}}, {{4, 4, {1}}}}); }

// Changes the first rank's first piece.
Value with_piece(std::string_view key, const Value& value, const Value& map = halves()) {
  std::vector<Value> ranks;
  for (const auto& [rank, entry] : map.at(keys::kRanks).entries()) ranks.push_back(entry);
  auto pieces = ranks[0].at(keys::kPieces).items();
  pieces[0].set(key, value);
  ranks[0].set(keys::kPieces, Value::list(pieces));
  return map_of(map.at(keys::kLogicalShape).as_shape(), ranks);
}

TEST(AffineMap, IsTheCutThatItDescribes) {
  const CutRule rows = read(halves()).cut;
  EXPECT_EQ(rows.dim, 0);
  EXPECT_EQ(rows.widths, (std::vector<std::vector<int64_t>>{{4, 4}}));
  EXPECT_TRUE(rows.parts.empty() && rows.pieces.empty());

  // Columns of uneven widths; one rank has none.
  const CutRule columns =
      read(map_of_slices({2, 7}, 1, {{{0, 5, {0}}}, {{5, 0, {1}}}, {{5, 2, {2}}}})).cut;
  EXPECT_EQ(columns.dim, 1);
  EXPECT_EQ(columns.widths, (std::vector<std::vector<int64_t>>{{5, 0, 2}}));

  // Fused q, k and v, of which rank 1 has the only key and value head.
  const CutRule fused = read(map_of_slices({12, 2}, 0,
                                           {{{0, 4, {0}}, {8, 0, {0}}, {10, 0, {0}}},
                                            {{4, 4, {1}}, {8, 2, {1}}, {10, 2, {1}}}}))
                            .cut;
  EXPECT_EQ(fused.parts, (std::vector<int64_t>{8, 2, 2}));
  EXPECT_EQ(fused.widths, (std::vector<std::vector<int64_t>>{{4, 4}, {0, 2}, {0, 2}}));

  EXPECT_TRUE(read(map_of_slices({3, 2}, 0, {{{0, 3, {0, 1}}}, {{0, 3, {0, 1}}}})).cut.replicated);
  EXPECT_TRUE(
      read(map_of({}, {map_rank({}, {map_piece({}, map_view(0, {}), map_view(0, {}), {0})})}))
          .cut.replicated);
  EXPECT_TRUE(read(map_of({0, 2}, {map_rank({0, 2}, {})})).cut.replicated);
}

TEST(AffineMap, HasPiecesWhereNoOtherRuleSaysIt) {
  // Ranks share the last two rows.
  const CutRule shared =
      read(map_of_slices({6, 2}, 0, {{{0, 2, {0}}, {4, 2, {0, 1}}}, {{2, 2, {1}}, {4, 2, {0, 1}}}}))
          .cut;
  EXPECT_EQ(shared.pieces[1], (std::vector<CutPiece>{{2, 0, 2, 1, false}, {4, 2, 2, 1, true}}));
  EXPECT_FALSE(shared.pieces[0][1].is_copy);
  // Blocks in another order.
  const CutRule gathered =
      read(map_of_slices({8}, 0, {{{6, 2, {0}}, {0, 2, {0}}}, {{2, 4, {1}}}})).cut;
  EXPECT_EQ(gathered.pieces[0], (std::vector<CutPiece>{{6, 0, 2}, {0, 2, 2}}));
  // A bias that each rank has divided by the number of ranks.
  const CutRule scaled =
      read(map_of_slices({4}, 0, {{{0, 4, {0, 1}, 0.5}}, {{0, 4, {0, 1}, 0.5}}})).cut;
  EXPECT_FALSE(scaled.replicated);
  EXPECT_EQ(scaled.pieces[1][0].scale, 0.5);
}

TEST(AffineMap, MayWriteAPieceInAnyWay) {
  // Loops are joined, in any order, and dims of size 1 have any stride.
  const Value flat =
      map_of({4, 3}, {map_rank({2, 3}, {map_piece({6}, map_view(0, {1}), map_view(0, {1}), {0})}),
                      map_rank({2, 3}, {map_piece({3, 2, 1}, map_view(6, {1, 3, 99}),
                                                  map_view(0, {1, 3, 99}), {1})})});
  EXPECT_EQ(read(flat).cut.widths, (std::vector<std::vector<int64_t>>{{2, 2}}));
}

TEST(AffineMap, CutsForAnotherSizeOnlyByParts) {
  const AffineMap fused =
      read(map_of_slices({12, 2}, 0, {{{0, 4, {0}}, {8, 2, {0}}}, {{4, 4, {1}}, {10, 2, {1}}}}));
  const ShardLayout quarter = ShardLayout::make(fused.full, fused.cut.even(), 4, 3);
  EXPECT_EQ(quarter.pieces(), (std::vector<CutPiece>{{6, 0, 2}, {11, 2, 1}}));
  EXPECT_EQ(ShardLayout::make(fused.full, fused.cut.even(), 1, 0).shard_shape(), fused.full);
  EXPECT_THROW(ShardLayout::make(fused.full, fused.cut.even(), 3, 0), DamagedFile);  // 8 / 3

  const AffineMap shared =
      read(map_of_slices({6}, 0, {{{0, 2, {0}}, {4, 2, {0, 1}}}, {{2, 2, {1}}, {4, 2, {0, 1}}}}));
  EXPECT_REFUSES(shared.cut.even(), "model.pt: says how tp 2 cuts");
  EXPECT_THROW(ShardLayout::make(shared.full, shared.cut, 4, 0), Unreadable);
}

TEST(AffineMap, ReadsOnlyWhatProvesItself) {
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(13, {3, 1})), "do not lie in a tensor of 24");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(-1, {3, 1})), "['pieces'][0]['source']");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(0, {0, 1})), "strides [0, 1]");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(0, {-3, 1})), "strides [-3, 1]");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(0, {INT64_MAX, 1})), "do not lie in");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(INT64_MAX, {3, 1})), "do not lie in");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(0, {3})), "expected 2 strides");
  EXPECT_DAMAGED(with_piece(keys::kSource, Value::list({0})), "expected an offset and strides");
  EXPECT_DAMAGED(with_piece(keys::kDest, map_view(1, {3, 1})), "do not lie in a tensor of 12");
  EXPECT_DAMAGED(with_piece(keys::kShape, Value::list({-4, 3})), "cannot have the shape");
  EXPECT_DAMAGED(with_piece(keys::kShape, Value::list({3, 3})), "index 3 of the shard");
  EXPECT_DAMAGED(with_piece(keys::kSource, map_view(3, {3, 1})), "no rank has index 0");
  EXPECT_DAMAGED(with_piece(keys::kLocations, Value::list({1})), "expected ranks [0]");
  EXPECT_DAMAGED(with_piece(keys::kLocations, Value::list({0, 1})), "expected ranks [0]");
  EXPECT_DAMAGED(with_piece(keys::kLocations, Value::list()), "expected a rank");
  for (const double scale : {0.0, 1e-30, 1e30, HUGE_VAL, std::nan("")})
    EXPECT_DAMAGED(with_piece(keys::kScale, scale), "expected a factor");
  EXPECT_DAMAGED(with_piece(keys::kScale, "1"), "['scale']");

  EXPECT_DAMAGED(map_of_slices({8}, 0, {{{0, 4, {0}}}, {{5, 3, {1}}}}), "no rank has index 4");
  EXPECT_DAMAGED(map_of_slices({8}, 0, {{{0, 4, {0}}}, {{4, 3, {1}}}}), "no rank has index 7");
  EXPECT_DAMAGED(map_of_slices({8}, 0, {{{0, 5, {0}}}, {{4, 4, {1}}}}), "expected ranks");
  EXPECT_DAMAGED(map_of_slices({8}, 0, {{{0, 4, {0}}, {2, 2, {0}}}, {{4, 4, {1}}}}), "twice");
  EXPECT_DAMAGED(map_of({4}, {}), "expected at least one rank");
  Value ranks = halves();
  ranks.set(keys::kRanks, Value::dict({{1, 1}}));
  EXPECT_DAMAGED(ranks, "expected rank 0 before rank");
  EXPECT_DAMAGED(map_of({INT64_MAX}, {map_rank({4}, {})}), "expected a smaller tensor");
  for (const auto key : {keys::kLogicalShape, keys::kRanks})
    EXPECT_DAMAGED(halves().erase(key), std::string(key));
}

TEST(AffineMap, RefusesWhatNoCutCanSay) {
  // A quarter each of rows and columns.
  std::vector<Value> quarters;
  for (const int64_t begin : {0, 2, 8, 10})
    quarters.push_back(
        map_rank({2, 2}, {map_piece({2, 2}, map_view(begin, {4, 1}), map_view(0, {2, 1}),
                                    {static_cast<int64_t>(quarters.size())})}));
  // The shard is the transpose.
  const Value transposed = map_of(
      {2, 2},
      {map_rank({2, 2}, {map_piece({2, 2}, map_view(0, {2, 1}), map_view(0, {1, 2}), {0})})});
  for (const Value& map : {map_of({4, 4}, quarters), transposed}) {
    EXPECT_THROW(read(map), Unreadable);
    EXPECT_THAT(refusal(map), HasSubstr("expected pieces that are slices along one dim"));
  }
  int64_t budget = 10;
  EXPECT_THROW(AffineMap::from_value(halves(), budget), Unreadable);
}

TEST(AffineMap, MergesShardsOfItsSizesAlone) {
  const AffineMap map = read(halves());
  const auto merge = [&](std::vector<Shape> shards, std::optional<int64_t> vocabulary = {}) {
    return map.merge("p", shards, vocabulary);
  };
  EXPECT_EQ(merge({{4, 3}, {4, 3}}).full, (Shape{8, 3}));
  EXPECT_EQ(merge({{12}, {2, 6}}).full, (Shape{8, 3}));  // fused layers have views of their own
  EXPECT_EQ(merge({{4, 3}, {4, 3}}, 7).full, (Shape{7, 3}));
  EXPECT_EQ(merge({{4, 3}, {4, 3}}, 9).full, (Shape{8, 3}));
  EXPECT_THROW(merge({{4, 3}, {3, 3}}), DamagedFile);
  EXPECT_THROW(merge({{8, 3}}), DamagedFile);
  EXPECT_THROW(merge({{4, 3}, {4, 3}}, -1), DamagedFile);
}

TEST(AffineMap, ScalesStatesByTheirPower) {
  EXPECT_EQ(factor_of_state(0.5, kFp32State), 0.5);
  EXPECT_EQ(factor_of_state(0.5, kExpAvgState), 2);
  EXPECT_EQ(factor_of_state(0.5, kExpAvgSqState), 4);
  EXPECT_THROW(factor_of_state(0.5, "momentum_buffer"), Unreadable);
  EXPECT_EQ(factor_of_state(1, "momentum_buffer"), 1);
}

}  // namespace
}  // namespace anymesh
