#pragma once

#include "framework/comm/communicator.h"

namespace anymesh::pretend {

// Returns the ranks of `host`, with verbs that run in a stream of their own beside the computation,
// as NCCL's do. A caller that touches their tensors before it waits breaks the device's order.
CommPtr stream_communicator(CommPtr host);

}  // namespace anymesh::pretend
