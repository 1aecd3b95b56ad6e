#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// The ranks that share a layer's experts: rank r of n has experts [r E/n, (r + 1) E/n), and their
// tokens travel to it. Tensor parallelism cuts each expert as it cuts an MLP, unless experts are
// `whole` (topology.h).
struct ExpertParallel {
  CommPtr group;  // null: this rank has all experts
  bool whole = false;

  int rank() const { return group ? group->rank() : 0; }
  int size() const { return group ? group->size() : 1; }
};

}  // namespace anymesh
