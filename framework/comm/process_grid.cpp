#include "framework/comm/process_grid.h"

#include <c10/util/StringUtil.h>

namespace anymesh {

ProcessGrid::ProcessGrid(CommPtr world_group, Topology mesh, CommCounts* comm_counts,
                         torch::Device where, int rank)
    : topology(mesh),
      coord(mesh.coord_of(rank < 0 ? world_group->rank() : rank)),
      world(counted(std::move(world_group), "world", comm_counts)),
      counts(comm_counts),
      device(where) {
  TORCH_INTERNAL_ASSERT(world->size() == topology.world_size());
  reports = rank < 0 ? world : world->split(0, 0);
  // The color is a function of a rank's coordinates.
  const auto group = [&](const char* name, const auto& color) {
    const auto color_of = [&](int other) { return color(topology.coord_of(other)); };
    return counted(world->split_by(color_of, name), name, counts);
  };
  const auto first_of = [&](const Coord& c, int expert_rank) {
    return topology.rank_of(topology.expert_coord_of(c.pp, c.tp, expert_rank));
  };
  tp = group("tp", [&](const Coord& c) { return topology.rank_of({c.pp, c.dp, 0}); });
  pp = group("pp", [&](const Coord& c) { return topology.rank_of({0, c.dp, c.tp}); });
  dp = group("dp", [&](const Coord& c) { return topology.rank_of({c.pp, 0, c.tp}); });
  ep = group("ep", [&](const Coord& c) {
    return first_of(c, topology.edp_rank_of(c) * topology.ep_size);
  });
  edp = topology.ep_size == 1 && !topology.whole_experts
            ? dp
            : group("edp", [&](const Coord& c) { return first_of(c, topology.ep_rank_of(c)); });
  for (const CommPtr& each : {pp, dp, edp}) each->run_beside();
  model = group("model", [](const Coord& c) { return c.dp; });
  // A middle stage is alone. Its color is its own rank, which no first stage has.
  embedding = group("embedding", [&](const Coord& c) {
    const bool at_an_end = c.pp == 0 || c.pp == topology.pp_size - 1;
    return topology.rank_of({at_an_end ? 0 : c.pp, c.dp, c.tp});
  });
}

CommPtr ProcessGrid::holders(bool experts) const {
  const char* name = experts ? "expert holders" : "holders";
  const auto color_of = [&](int other) {
    const Coord c = topology.coord_of(other);
    return c.pp * topology.ep_size + (experts ? topology.ep_rank_of(c) : 0);
  };
  return counted(world->split_by(color_of, name), name, counts);
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
