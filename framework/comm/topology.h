#pragma once

#include <stdexcept>
#include <string>

namespace anymesh {

// A rank's place in the 3-D mesh. Pure arithmetic: no communication, no LibTorch.
//
//   rank = (pp * dp_size + dp) * tp_size + tp
//
// This is DeepSpeed's order (pipe, data, model). The ranks of a tensor-parallel group are adjacent,
// and the rank numbers in checkpoint file names agree. Example: tp 2, dp 2, pp 2: rank 5 = {pp 1,
// dp 0, tp 1}.
struct Coord {
  int pp = 0, dp = 0, tp = 0;
  bool operator==(const Coord&) const = default;
};

struct Topology {
  int pp_size = 1, dp_size = 1, tp_size = 1;

  int world_size() const { return pp_size * dp_size * tp_size; }
  int rank_of(Coord c) const { return (c.pp * dp_size + c.dp) * tp_size + c.tp; }
  Coord coord_of(int rank) const {
    if (rank < 0 || rank >= world_size())
      throw std::logic_error("rank " + std::to_string(rank) + " of " +
                             std::to_string(world_size()));
    return {.pp = rank / (dp_size * tp_size), .dp = rank / tp_size % dp_size, .tp = rank % tp_size};
  }
  bool operator==(const Topology&) const = default;
};

}  // namespace anymesh
