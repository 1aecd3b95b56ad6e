#include "framework/format/layout/sub_params.h"

#include <algorithm>

#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr double kWidthsVersion = 0.4;  // records the widths of sub-parameters
constexpr int64_t kAnySize = -1;        // in a shape, as for torch's reshape

// Returns the sizes of the sub-parameters. An old checkpoint may have their number in place of
// them, as they are equal.
std::vector<int64_t> part_sizes(const std::string& name, const UniversalInfo::SubParams& fused,
                                std::span<const Shape> shards) {
  const auto dim = static_cast<size_t>(fused.partition_dim);
  const std::vector<int64_t>& sizes = fused.shape[dim];
  if (!fused.is_count) return sizes;
  std::vector<int64_t> rows;
  for (const Shape& shard : shards) rows.push_back(dim < shard.size() ? shard[dim] : 0);
  const int64_t count = sizes[0], size = sum_of(rows);
  if (count <= 0 || size == 0 || size % count != 0)
    throw DamagedFile(name + ": " + std::to_string(count) + " sub-parameters cannot have " +
                      std::to_string(size) + " rows together");
  return std::vector<int64_t>(static_cast<size_t>(count), size / count);
}

// Returns the shape of a fused parameter with these sub-parameters. At most one of its sizes may be
// any: it follows from the number of the shards' elements.
Shape fused_shape(const std::string& name, const UniversalInfo::SubParams& fused,
                  const std::vector<int64_t>& parts, std::span<const Shape> shards) {
  Shape full, known;
  for (const auto& sizes : fused.shape)
    full.push_back(sizes[0] == kAnySize ? kAnySize : sum_of(sizes));
  const auto dim = static_cast<size_t>(fused.partition_dim);
  if (parts[0] != kAnySize) full[dim] = sum_of(parts);
  const auto any = std::ranges::find(full, kAnySize);
  if (any == full.end()) return full;
  for (const int64_t size : full)
    if (size != kAnySize) known.push_back(size);
  std::vector<int64_t> held;
  for (const Shape& shard : shards) held.push_back(numel(shard));
  const int64_t total = sum_of(held), rest = numel(known);
  if (known.size() + 1 != full.size() || rest == 0 || total % rest != 0)
    throw DamagedFile(name + ": a shape of " + to_string(full) + " cannot have " +
                      std::to_string(total) + " elements");
  *any = total / rest;
  return full;
}

}  // namespace

UniversalInfo::SubParams read_sub_params(const Value& value, double version) {
  UniversalInfo::SubParams result;
  result.patterns = value.at(keys::kPatterns).as_strings();
  const Value dim = value.at(keys::kPartitionDim), shape = value.at(keys::kShape);
  for (const Value& size : shape.items()) {
    const auto& parts =
        result.shape.emplace_back(size.is_sequence() ? size.as_ints() : std::vector{size.as_int()});
    if (parts.empty()) size.fail("at least one size");
    if (!size.is_sequence() && parts[0] == kAnySize) continue;
    int64_t sum = 0;
    for (const int64_t part : parts)
      if (part < 0 || __builtin_add_overflow(sum, part, &sum)) size.fail("sizes that add up");
  }
  if (dim.as_int() < 0 || static_cast<size_t>(dim.as_int()) >= result.shape.size())
    dim.fail("a dim of the shape");
  result.partition_dim = static_cast<int>(dim.as_int());
  result.is_count = version < kWidthsVersion && !shape.at(result.partition_dim).is_sequence();
  result.source = value;
  return result;
}

MergeShape merge_sub_params(const std::string& name, const UniversalInfo::SubParams& fused,
                            const std::vector<std::vector<int64_t>>& widths,
                            std::span<const Shape> shards) {
  MergeShape merged;
  merged.cut.dim = fused.partition_dim;
  merged.cut.parts = part_sizes(name, fused, shards);
  merged.full = fused_shape(name, fused, merged.cut.parts, shards);
  if (merged.cut.parts[0] == kAnySize)
    merged.cut.parts = {merged.full[static_cast<size_t>(merged.cut.dim)]};
  merged.cut.widths = widths;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    const auto tp_size = static_cast<int>(shards.size());
    const ShardLayout layout =
        ShardLayout::make(merged.full, merged.cut, tp_size, static_cast<int>(rank));
    if (numel(shards[rank]) != layout.shard_numel()) {
      throw DamagedFile(name + ": its shard of tp rank " + std::to_string(rank) +
                        " has the shape " + to_string(shards[rank]) + ", its sub-parameters say " +
                        to_string(layout.shard_shape()));
    }
  }
  return merged;
}

Value sub_param_shape(const UniversalInfo::SubParams& fused, const CutRule& cut) {
  Value shape = fused.source.at(keys::kShape);
  if (fused.is_count) {
    std::vector<Value> sizes = shape.items();
    sizes[static_cast<size_t>(cut.dim)] = Value::tuple({cut.parts.begin(), cut.parts.end()});
    shape = Value::tuple(std::move(sizes));
  }
  return Value::object("deepspeed.checkpoint.universal_checkpoint", "SubparamShape",
                       {{keys::kPatterns, fused.source.at(keys::kPatterns)},
                        {keys::kShape, shape},
                        {keys::kPartitionDim, fused.partition_dim}});
}

}  // namespace anymesh
