#include "framework/config/batch_ramp.h"

#include <algorithm>

#include "framework/config/require.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"

namespace anymesh {

// The quotient is rounded as in Megatron, so that both change size at the same sample.
int64_t BatchRamp::batch_size(int64_t consumed, int64_t full) const {
  if (consumed > samples || samples == 0) return full;
  const double samples_per_size =
      static_cast<double>(samples) / (static_cast<double>(full - start) / increment);
  return start + static_cast<int64_t>(static_cast<double>(consumed) / samples_per_size) * increment;
}

int64_t BatchRamp::steps(int64_t consumed, int64_t end, int64_t full) const {
  int64_t steps = 0;
  while (consumed <= samples && samples > 0) {
    const int64_t size = batch_size(consumed, full);
    if (size > end - consumed) return steps;
    consumed += size;
    ++steps;
  }
  return steps + std::max<int64_t>(0, end - consumed) / full;
}

BatchRamp parse_batch_ramp(const std::vector<std::string>& values, int64_t full) {
  if (values.empty()) return {};
  const std::string given = "--rampup-batch-size " + joined(values, " ");
  BatchRamp ramp;
  int64_t* const fields[] = {&ramp.start, &ramp.increment, &ramp.samples};
  bool valid = values.size() == std::size(fields);
  for (size_t i = 0; valid && i < values.size(); ++i) {
    const auto number = parse_number<int64_t>(values[i]);
    valid = number && *number >= 1 && *number <= INT32_MAX;
    if (valid) *fields[i] = *number;
  }
  require(valid, given, ": expected the first size, the increment, and the samples until ",
          with("--global-batch-size", full), ", all at least 1");
  require(ramp.start < full && (full - ramp.start) % ramp.increment == 0, given, ": ",
          with("--global-batch-size", full), " must be ", values[0], " and a positive multiple of ",
          values[1], "; use --global-batch-size ",
          ramp.start + std::max<int64_t>(1, (full - ramp.start) / ramp.increment) * ramp.increment);
  return ramp;
}

}  // namespace anymesh
