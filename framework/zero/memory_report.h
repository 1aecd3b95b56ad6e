#pragma once

#include <string>
#include <vector>

#include "framework/zero/memory.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {

// The memory that a rank keeps between steps, part by part, by a closed form. There are n
// parameters on the rank (its stage, its tp slice), w bytes a weight (2 in half precision, else 4),
// d ranks that hold the same parameters (dp, or edp for experts), and the stage's partitions:
//
//                     stage 0      1           2           3
//   parameters        w n          w n         w n         w n / d
//   gradients         4 n          4 n         4 n / d     4 n / d
//   optimizer state   k n          k n / d     k n / d     k n / d      k = 4 for each state, and 4
//                                                                      for a half's master
//   tied copies       4 t          4 t         (4 t)       4 t / d      t: a tied weight that one
//                                                                       stage uses twice
// (At stage 2 a tied weight lies in one partition as far as it fits: at most 4 n / d.)
//
// With --same-bits, sums of gradients have 8 bytes an element, also those of tied copies, and the
// optimizer's partition has 4 more.
//
// Parameters or optimizer state offloaded to disk (--offload-optimizer, --offload-param with nvme)
// count as 0. A further row has the buffers that they stream through: w, k or w + k times 2 * 2^20,
// whatever n is (half of it for a partition of at most 2^20).
//
// The closed form leaves out padding, at most a few elements a parameter.

// Returns "1.9 MiB on the largest rank: parameters 0.5, gradients 0.5, optimizer state 0.9", by the
// closed form. Collective.
std::string memory_forecast(Communicator& world, const ZeroOptimizer& optimizer);

// Bytes, allocated and by the closed form; -1 = there is none.
struct MemoryPart {
  const char* name;
  int64_t allocated = 0, closed_form = 0;
};

// Returns the rows of --report-memory, each of the largest rank. Collective.
std::vector<MemoryPart> memory_report(Communicator& world, const ZeroOptimizer& optimizer,
                                      const ByteGauge& allocated);
std::vector<std::string> memory_lines(const std::vector<MemoryPart>& rows);

}  // namespace anymesh
