#pragma once

#include <cstdint>
#include <numeric>
#include <string>

#include "framework/comm/counting_communicator.h"
#include "framework/comm/topology.h"

namespace anymesh {

// How --same-bits sums; without it, 0 blocks.
struct SameBits {
  int blocks = 0;            // of inner dimensions that tp cuts: a power of two, tp divides it
  int64_t rows_of_part = 0;  // positions whose gradients of norms and biases are one addend
  int64_t parts = 1;         // of a sample: a power of two, at most 16

  static SameBits of(int blocks, int64_t seq_length) {
    const int64_t parts = std::gcd(seq_length, int64_t{16});
    return {blocks, seq_length / parts, parts};
  }
};

// This rank's place in the mesh and the groups it belongs to. Created once in main and passed by
// const reference.
//
//   world      all ranks
//   tp         same stage and dp rank: hold the slices of one layer
//   pp         same dp and tp rank: hold the stages of one model replica; rank in it = stage
//   dp         same stage and tp rank: hold the same weights, see other samples; ZeRO cuts over it
//   model      same dp rank (tp x pp): one whole model replica; rank in it = mp_rank of file names
//   ep         same stage, tp and edp rank (topology.h): share the experts; tokens travel in it
//   edp        same stage, tp and ep rank: hold the same experts, as dp holds the rest
//   embedding  first and last stage of pp, which both hold a tied embedding (other stages: alone)
//
// With `counts`, which must outlive the grid, the groups count their traffic under these names.
struct ProcessGrid {
  // REQUIRES: the world's verbs take tensors on `device`, where this rank computes. `rank` is this
  // one in the mesh, where the world does not tell it (lone_job.h).
  ProcessGrid(CommPtr world, Topology topology, CommCounts* counts = nullptr,
              torch::Device device = torch::kCPU, int rank = -1);

  // Returns the ranks that hold slices or replicas of this stage's dense parameters (tp x dp), or
  // of the same experts, in the order of world ranks. Collective.
  CommPtr holders(bool experts) const;

  bool is_first_stage() const { return coord.pp == 0; }
  bool is_last_stage() const { return coord.pp == topology.pp_size - 1; }

  Topology topology;
  Coord coord;
  CommPtr world, tp, pp, dp, ep, edp, model, embedding;
  CommPtr reports;  // ranks whose profiles are put together: the world, or a rank that runs alone
  CommCounts* counts;
  torch::Device device;
  SameBits same_bits = {};
};

// "tensor 2 x pipeline 2 x data 2 = 8 ranks"
std::string describe(const Topology& topology);

}  // namespace anymesh
