#pragma once

#include <string>

#include "framework/comm/counting_communicator.h"
#include "framework/comm/topology.h"

namespace anymesh {

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
  // REQUIRES: the world's verbs take tensors on `device`, where this rank computes.
  ProcessGrid(CommPtr world, Topology topology, CommCounts* counts = nullptr,
              torch::Device device = torch::kCPU);

  bool is_first_stage() const { return coord.pp == 0; }
  bool is_last_stage() const { return coord.pp == topology.pp_size - 1; }

  Topology topology;
  Coord coord;
  CommPtr world, tp, pp, dp, ep, edp, model, embedding;
  CommCounts* counts;
  torch::Device device;
};

// "tensor 2 x pipeline 2 x data 2 = 8 ranks"
std::string describe(const Topology& topology);

}  // namespace anymesh
