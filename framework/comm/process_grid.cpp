#include "framework/comm/process_grid.h"

#include <c10/util/StringUtil.h>

namespace anymesh {

ProcessGrid::ProcessGrid(CommPtr world_group, Topology mesh, CommCounts* comm_counts,
                         torch::Device where)
    : topology(mesh),
      coord(mesh.coord_of(world_group->rank())),
      world(counted(std::move(world_group), "world", comm_counts)),
      counts(comm_counts),
      device(where) {
  TORCH_INTERNAL_ASSERT(world->size() == topology.world_size());
  const int rank = world->rank();
  const auto [pp_rank, dp_rank, tp_rank] = coord;
  const auto group = [&](const char* name, int color) {
    return counted(world->split(color, rank, name), name, counts);
  };
  tp = group("tp", topology.rank_of({pp_rank, dp_rank, 0}));
  pp = group("pp", topology.rank_of({0, dp_rank, tp_rank}));
  dp = group("dp", topology.rank_of({pp_rank, 0, tp_rank}));
  const auto first_of = [&](int expert_rank) {
    return topology.rank_of(topology.expert_coord_of(coord.pp, coord.tp, expert_rank));
  };
  ep = group("ep", first_of(topology.edp_rank_of(coord) * topology.ep_size));
  edp = topology.ep_size == 1 && !topology.whole_experts
            ? dp
            : group("edp", first_of(topology.ep_rank_of(coord)));
  model = group("model", dp_rank);
  // A middle stage is alone. Its color is its own rank, which no first stage has.
  const bool at_an_end = is_first_stage() || is_last_stage();
  embedding = group("embedding", at_an_end ? topology.rank_of({0, dp_rank, tp_rank}) : rank);
}

CommPtr ProcessGrid::holders(bool experts) const {
  const int color = coord.pp * topology.ep_size + (experts ? topology.ep_rank_of(coord) : 0);
  const char* name = experts ? "expert holders" : "holders";
  return counted(world->split(color, world->rank(), name), name, counts);
}

std::string describe(const Topology& t) {
  std::string text =
      c10::str("tensor ", t.tp_size, " x pipeline ", t.pp_size, " x data ", t.dp_size, " = ",
               t.world_size(), t.world_size() == 1 ? " rank" : " ranks");
  if (t.ep_size > 1)
    text += c10::str("; experts over ", t.ep_size, " of ", t.expert_ranks(), " ranks",
                     t.whole_experts ? ", whole" : "");
  return text;
}

}  // namespace anymesh
