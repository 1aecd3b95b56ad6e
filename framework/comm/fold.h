// The sum of the collectives between CPUs. It runs in rank order, ((x0 + x1) + x2) + ..., so its
// bits depend neither on the transport nor on where a tensor is cut.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "framework/comm/communicator.h"

namespace anymesh {

// out[i] <- parts[0][i] op parts[1][i] op ... for n elements. bf16 and fp16 are folded in fp32 and
// rounded once. `out` may be one of the parts. REQUIRES: at least one part.
void fold(const std::vector<const std::byte*>& parts, int64_t n, torch::Dtype dtype, ReduceOp op,
          std::byte* out, torch::Dtype out_dtype);

}  // namespace anymesh
