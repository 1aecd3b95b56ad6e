#pragma once

#include "framework/format/layout/merge_rules.h"

namespace anymesh {

// The entries of parameter_with_sub_params in universal_checkpoint_info: fused parameters whose
// parts are cut each by itself.
//
//   {'patterns': ['^qkv$'], 'shape': [(8, 4, 4), -1], 'partition_dim': 0}
//
// One size may be -1: it follows from the number of elements. Before version 0.4 the cut dim may
// have the number of equal parts, as in [3, -1].

UniversalInfo::SubParams read_sub_params(const Value& value, double version);

// Returns the shape and the cut of a fused parameter, with the widths if they are recorded. Throws
// if a shard does not fit them.
MergeShape merge_sub_params(const std::string& name, const UniversalInfo::SubParams& fused,
                            const std::vector<std::vector<int64_t>>& widths,
                            std::span<const Shape> shards);

// Returns the description in a state file. Its shape has the sizes of the parts.
Value sub_param_shape(const UniversalInfo::SubParams& fused, const CutRule& cut);

}  // namespace anymesh
