#pragma once

#include <string_view>

#include "framework/format/layout/merge_rules.h"

namespace anymesh {

// An entry of `affine_map` in universal_checkpoint_info, which DeepSpeed's AutoTP writes for each
// parameter. It lists each rank's pieces as strided views, the arguments of torch.as_strided:
//
//   {'logical_shape': [8, 4],
//    'ranks': {0: {'shard_shape': [4, 4],
//                  'pieces': [{'shape': [4, 4], 'locations': [0],
//                              'source': [0, [4, 1]],     offset and strides in the full tensor
//                              'dest': [0, [4, 1]]}]},    and in the shard
//              1: ...}}
//
// All maps that DeepSpeed writes slice one dim, so that a CutRule says the same: they concatenate,
// cut sub-parameters each by itself, pick blocks, or give all ranks a part.
struct AffineMap {
  Shape full;
  CutRule cut;  // parts and widths if they say it all, else pieces
  size_t tp_size = 0;

  // Reads an entry, and proves that each element of a shard and of the full tensor has its place.
  // Throws DamagedFile if not, and Unreadable for pieces that are not slices along one dim. Takes
  // the entry's size off `budget`; throws Unreadable when that is spent.
  static AffineMap from_value(const Value& value, int64_t& budget);

  // Returns the full shape and the cut. Throws unless these are the shards' sizes. Keeps the first
  // `vocabulary` rows.
  MergeShape merge(const std::string& name, std::span<const Shape> shards,
                   std::optional<int64_t> vocabulary) const;
};

// Returns the factor that a piece of this scale has in one of the parameter's states. A weight
// times s has a gradient, and so an exp_avg, times 1/s. Throws Unreadable for other optimizers'
// states.
double factor_of_state(double scale, std::string_view state);

}  // namespace anymesh
