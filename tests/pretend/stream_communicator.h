#pragma once

#include "framework/comm/communicator.h"

namespace anymesh::pretend {

// Returns the ranks of `host`, with verbs that run in two streams of their own, as NCCL's do: those
// that the computation waits for at once, and those that run beside it. A caller that touches their
// tensors before it waits breaks the device's order.
CommPtr stream_communicator(CommPtr host);

}  // namespace anymesh::pretend
