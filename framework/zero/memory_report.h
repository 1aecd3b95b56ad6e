#pragma once

#include <string>
#include <vector>

#include "framework/zero/memory.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {

// A rank's allocations beside the closed form of memory_form.h.

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
