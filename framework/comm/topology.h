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

// Experts are spread over the ranks of a stage, by a grid of their own:
//
//   rank in the stage = edp * ep_size + ep     for each tp rank: tp cuts every expert
//                                              over all tp ranks: tp does not (whole_experts)
//
// The ranks of equal edp share the experts; those of equal ep hold the same ones. With
// whole_experts the ranks of a stage count tp first, as they do in the world.
struct Topology {
  int pp_size = 1, dp_size = 1, tp_size = 1;
  int ep_size = 1;
  bool whole_experts = false;
  int chunks = 1;  // runs of consecutive layers that a stage holds (pipeline/schedule.h)

  // The ranks that experts are spread over, a rank's number among them, and the rank of a number.
  int expert_ranks() const { return whole_experts ? dp_size * tp_size : dp_size; }
  int expert_rank_of(Coord c) const { return whole_experts ? c.dp * tp_size + c.tp : c.dp; }
  Coord expert_coord_of(int pp, int tp, int rank) const {
    return whole_experts ? Coord{pp, rank / tp_size, rank % tp_size} : Coord{pp, rank, tp};
  }
  int ep_rank_of(Coord c) const { return expert_rank_of(c) % ep_size; }
  int edp_rank_of(Coord c) const { return expert_rank_of(c) / ep_size; }
  int edp_size() const { return expert_ranks() / ep_size; }

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
