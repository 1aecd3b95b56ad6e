#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// Returns the ranks of `host`, with verbs that also take a device's tensors, through pinned host
// memory. Everything that communicator.h says about sums holds, and ranks may share a device. It is
// slow.
CommPtr staged_communicator(CommPtr host);

}  // namespace anymesh
