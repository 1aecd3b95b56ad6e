#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace anymesh {

// Batches that grow over the first samples of a run, as Megatron's --rampup-batch-size START
// INCREMENT SAMPLES has them:
//
//   START, START + INCREMENT, ..., --global-batch-size
//
// Each size but the last serves for an equal part of SAMPLES. The size of a step is a function of
// the samples consumed before it. So a run goes on with the right size on any mesh.
struct BatchRamp {
  int64_t start = 0, increment = 0, samples = 0;  // samples 0: every batch has the full size

  // Returns the size of the batch that begins when `consumed` samples have been read. `full` is
  // --global-batch-size.
  int64_t batch_size(int64_t consumed, int64_t full) const;

  // Returns how many whole steps fit between `consumed` and `end` samples.
  int64_t steps(int64_t consumed, int64_t end, int64_t full) const;
};

// Parses the values of --rampup-batch-size. None give no ramp. Throws UserError unless the sizes
// lead to `full` in whole increments.
BatchRamp parse_batch_ramp(const std::vector<std::string>& values, int64_t full);

}  // namespace anymesh
