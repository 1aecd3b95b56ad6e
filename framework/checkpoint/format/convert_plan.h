#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/checkpoint/format/source_checkpoint.h"
#include "framework/checkpoint/format/universal_info.h"

namespace anymesh {

// One file of the universal folder, ready to be written: its tensors read from the source when they
// are.
struct OutputFilePlan {
  std::string parameter, state;  // zero/<parameter>/<state>.pt
  Value content;
  uint64_t bytes = 0;  // of its tensor
  std::string rule;    // for the plan that is kept: how it was merged
  std::vector<std::pair<int, SourceFragment>> sources;  // tp rank and fragment
};

struct ConvertPlan {
  std::vector<OutputFilePlan> files;
  std::vector<std::string> unused_patterns;
  int64_t parameters = 0, elements = 0;

  std::string to_json() const;
};

// How shards are merged. Only a checkpoint of tp 1 may do without; what is refused may be told a
// `remedy`.
UniversalInfo merge_info(const SourceCheckpoint& source, const std::string& remedy = "");

// Plans every state of every parameter. Refuses a parameter whose elements are not covered exactly
// once, and one that pipeline stages share without a pattern that says so.
ConvertPlan plan_conversion(const SourceCheckpoint& source, const UniversalInfo& info);

}  // namespace anymesh
