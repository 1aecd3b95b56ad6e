#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// All ranks of the test program (tests/support/mpi_main.cpp).
CommPtr mpi_world();

// The first `ranks` ranks as a world of their own; null on the others, which sit the case out.
inline CommPtr first_ranks(int ranks) {
  const CommPtr part = mpi_world()->split(mpi_world()->rank() < ranks ? 0 : 1, mpi_world()->rank());
  return mpi_world()->rank() < ranks ? part : CommPtr();
}

}  // namespace anymesh
