#include "framework/format/layout/shard_layout.h"

#include <numeric>

#include "framework/format/sharded/tensor_views.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

constexpr int64_t kNoImage = -1;

// Independent of ShardLayout: walks the full tensor's indices, dim by dim.
std::vector<int64_t> shard_by_index(const Shape& full, const CutRule& rule, int tp_size,
                                    int tp_rank, Shape& shard) {
  shard = full;
  std::vector<int64_t> positions;  // of the shard's slices along dim, in the full tensor
  const auto dim = static_cast<size_t>(rule.dim);
  const bool cut = !rule.replicated && !full.empty();
  if (cut) {
    const auto parts =
        rule.parts.empty() ? std::vector{rule.padded ? rule.padded : full[dim]} : rule.parts;
    int64_t begin = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto widths =
          rule.widths.empty() ? std::vector<int64_t>(tp_size, parts[p] / tp_size) : rule.widths[p];
      const int64_t first =
          begin + std::accumulate(widths.begin(), widths.begin() + tp_rank, int64_t{0});
      for (int64_t i = 0; i < widths[static_cast<size_t>(tp_rank)]; ++i) {
        positions.push_back(first + i < full[dim] ? first + i : kNoImage);
      }
      begin += parts[p];
    }
    shard[dim] = static_cast<int64_t>(positions.size());
  }
  std::vector<int64_t> image(static_cast<size_t>(numel(shard)));
  for (size_t flat = 0; flat < image.size(); ++flat) {
    auto rest = static_cast<int64_t>(flat);
    int64_t offset = 0, stride = 1;
    bool padding = false;
    for (size_t d = full.size(); d-- > 0;) {
      int64_t index = rest % shard[d];
      rest /= shard[d];
      if (cut && d == dim) index = positions[static_cast<size_t>(index)];
      padding |= index == kNoImage;
      offset += index * stride;
      stride *= full[d];
    }
    image[flat] = padding ? kNoImage : offset;
  }
  return image;
}

struct LayoutCase {
  Shape full;
  CutRule rule;
  int tp_size;
};

const std::vector<LayoutCase>& cases() {
  static const std::vector<LayoutCase> list = [] {
    std::vector<LayoutCase> result;
    for (const int tp : {1, 2, 3, 4}) {
      result.push_back({{12, 5}, {.replicated = true}, tp});
      result.push_back({{12}, {}, tp});
      result.push_back({{12, 5}, {}, tp});
      result.push_back({{5, 12}, {.dim = 1}, tp});
      result.push_back({{2, 12, 3}, {.dim = 1}, tp});
      result.push_back({{2, 3, 12}, {.dim = 2}, tp});
      result.push_back({{24, 3}, {.parts = {12, 12}}, tp});
      result.push_back({{3, 36}, {.dim = 1, .parts = {24, 12}}, tp});
      result.push_back({{10, 3}, {.padded = 12}, tp});
      result.push_back({{1, 3}, {.padded = 12}, tp});  // whole ranks of padding
      result.push_back({{0, 3}, {}, tp});
    }
    result.push_back({{10, 2}, {.parts = {7, 3}, .widths = {{4, 3}, {1, 2}}}, 2});
    result.push_back({{3, 7}, {.dim = 1, .widths = {{0, 7, 0}}}, 3});
    result.push_back({{}, {.replicated = true}, 2});
    result.push_back({{}, {}, 1});
    return result;
  }();
  return list;
}

std::string name_of(const LayoutCase& c) {
  return to_string(c.full) + " dim " + std::to_string(c.rule.dim) + " tp " +
         std::to_string(c.tp_size);
}

TEST(ShardLayout, EveryElementGoesWhereTheIndexSays) {
  for (const LayoutCase& c : cases()) {
    for (int rank = 0; rank < c.tp_size; ++rank) {
      Shape shape;
      const auto image = shard_by_index(c.full, c.rule, c.tp_size, rank, shape);
      const auto layout = ShardLayout::make(c.full, c.rule, c.tp_size, rank);
      ASSERT_EQ(layout.shard_shape(), shape) << name_of(c);
      ASSERT_EQ(layout.shard_numel(), numel(shape)) << name_of(c);
      ASSERT_EQ(layout.full_numel(), numel(c.full)) << name_of(c);
      const auto count = static_cast<int64_t>(image.size());
      for (int64_t begin = 0; begin <= count; begin += 3) {
        for (const int64_t end :
             {begin, std::min(begin + 1, count), std::min(begin + 7, count), count}) {
          std::vector<int64_t> seen(image.size(), kNoImage);
          layout.for_each_run(begin, end - begin, [&](int64_t full, int64_t shard, int64_t n) {
            for (int64_t i = 0; i < n; ++i) seen[static_cast<size_t>(shard + i)] = full + i;
          });
          for (int64_t i = 0; i < count; ++i) {
            const int64_t expected =
                i >= begin && i < end ? image[static_cast<size_t>(i)] : kNoImage;
            ASSERT_EQ(seen[static_cast<size_t>(i)], expected)
                << name_of(c) << " rank " << rank << " element " << i;
          }
        }
      }
    }
  }
}

TEST(ShardLayout, ShardPositionIsTheInverse) {
  for (const LayoutCase& c : cases()) {
    for (int rank = 0; rank < c.tp_size; ++rank) {
      Shape shape;
      const auto image = shard_by_index(c.full, c.rule, c.tp_size, rank, shape);
      const auto layout = ShardLayout::make(c.full, c.rule, c.tp_size, rank);
      for (int64_t full = 0; full < numel(c.full); ++full) {
        const int64_t position = layout.shard_position(full);
        for (size_t i = 0; i < image.size(); ++i) {
          if (image[i] == kNoImage) continue;
          ASSERT_EQ(static_cast<int64_t>(i) < position, image[i] < full)
              << name_of(c) << " rank " << rank;
        }
      }
    }
  }
}

TEST(ShardLayout, ShardsTogetherAreTheFullTensorOnce) {
  for (const LayoutCase& c : cases()) {
    std::vector<int> seen(static_cast<size_t>(numel(c.full)));
    for (int rank = 0; rank < c.tp_size; ++rank) {
      const auto layout = ShardLayout::make(c.full, c.rule, c.tp_size, rank);
      layout.for_each_run(0, layout.shard_numel(), [&](int64_t full, int64_t, int64_t n) {
        for (int64_t i = 0; i < n; ++i) ++seen[static_cast<size_t>(full + i)];
      });
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), c.rule.replicated ? c.tp_size : 1)) << name_of(c);
  }
}

// Slices a tensor, cuts each shard into fragments, and merges them again, in one read and in small
// ones.
TEST(MergedTensor, MergingUndoesSlicing) {
  for (const LayoutCase& c : cases()) {
    std::vector<float> full(static_cast<size_t>(numel(c.full)));
    std::iota(full.begin(), full.end(), 1.0f);
    std::vector<MergedTensor::Part> parts;
    for (int rank = 0; rank < (c.rule.replicated ? 1 : c.tp_size); ++rank) {
      const auto layout = ShardLayout::make(c.full, c.rule, c.tp_size, rank);
      std::vector<float> shard(static_cast<size_t>(layout.shard_numel()), -7.0f);
      layout.for_each_run(0, layout.shard_numel(), [&](int64_t from, int64_t to, int64_t n) {
        std::copy_n(full.begin() + from, n, shard.begin() + to);
      });
      std::vector<ShardFragment> fragments;
      for (int64_t begin = 0; begin < layout.shard_numel();) {
        const int64_t n = std::min<int64_t>(begin % 4 + 2, layout.shard_numel() - begin);
        fragments.push_back(
            {0, begin, n,
             bytes_of(std::vector<float>(shard.begin() + begin, shard.begin() + begin + n))});
        begin += n;
      }
      parts.push_back(
          {layout, std::make_shared<const std::vector<ShardFragment>>(std::move(fragments))});
    }
    const MergedTensor merged(parts, DType::kFloat32);
    EXPECT_EQ(floats(merged), full) << name_of(c);
    for (uint64_t begin = 0; begin < full.size(); begin += 5) {
      const uint64_t n = std::min<uint64_t>(5, full.size() - begin);
      std::vector<float> piece(n);
      merged.read(begin * 4, std::as_writable_bytes(std::span(piece)));
      EXPECT_EQ(piece, std::vector<float>(full.begin() + begin, full.begin() + begin + n))
          << name_of(c);
    }
  }
}

TEST(ShardLayout, RefusesWhatDoesNotFit) {
  const auto make = [](Shape full, CutRule rule, int tp) {
    return ShardLayout::make(full, rule, tp, 0);
  };
  EXPECT_REFUSES(make({10, 2}, {}, 3), "10 is not divisible by the tensor-parallel size 3");
  EXPECT_THROW(make({10}, {.dim = 1}, 2), DamagedFile);
  EXPECT_THROW(make({}, {}, 2), DamagedFile);
  EXPECT_THROW(make({10}, {.parts = {5, 6}}, 1), DamagedFile);
  EXPECT_THROW(make({10}, {.padded = 8}, 2), DamagedFile);
  EXPECT_THROW(make({10}, {.widths = {{5, 6}}}, 2), DamagedFile);
  EXPECT_THROW(make({10}, {.widths = {{11, -1}}}, 2), DamagedFile);
  EXPECT_THROW(make({10}, {.widths = {{10}}}, 2), DamagedFile);
  EXPECT_EQ(message_of([&] {
              make({10}, {.parts = {INT64_MAX, 1}}, 1);
            }),
            "sizes [9223372036854775807, 1] add up to more than 2^63");
  EXPECT_THROW(ShardLayout::make(Shape{4}, {}, 2, 2), DamagedFile);
}

}  // namespace
}  // namespace anymesh
