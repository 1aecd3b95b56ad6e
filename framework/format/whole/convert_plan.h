#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/layout/merge_rules.h"
#include "framework/format/sharded/sharded_checkpoint.h"

namespace anymesh {

inline constexpr std::string_view kAverageRule = "average";

// One file of the universal folder, ready to be written. Its tensor is read from the source during
// the write.
struct OutputFilePlan {
  std::string parameter, state;  // zero/<parameter>/<state>.pt
  Value content;
  uint64_t bytes = 0;                                  // the tensor's size
  std::string rule;                                    // how the tensor was merged, for plan.json
  CutRule cut;                                         // of the tp ranks' shards
  std::vector<std::pair<int, ShardFragment>> sources;  // (tp rank, fragment)
};

struct ConvertPlan {
  std::vector<OutputFilePlan> files;
  std::vector<std::string> unused_patterns;
  int64_t parameters = 0, elements = 0;

  std::string to_json() const;
};

// Returns the checkpoint's universal_checkpoint_info, which says how shards are merged. Only a tp 1
// checkpoint may lack it. Otherwise throws Unreadable with `remedy` at the end of the message.
UniversalInfo merge_info(const ShardedCheckpoint& source, const std::string& remedy = "");

// Plans every state of every parameter. Throws DamagedFile if a parameter's elements are not
// covered exactly once, or if pipeline stages share it but neither a pattern nor a tied layer's
// name says so.
ConvertPlan plan_conversion(const ShardedCheckpoint& source, const UniversalInfo& info);

}  // namespace anymesh
