#include <stdexcept>

#include "framework/comm/topology.h"
#include "tutorials/write_it/checks.h"

namespace write_it {
namespace {

std::string coordinates(const anymesh::Topology& mesh, int rank) {
  const anymesh::Coord at = mesh.coord_of(rank);
  return "{pp " + std::to_string(at.pp) + ", dp " + std::to_string(at.dp) + ", tp " +
         std::to_string(at.tp) + "}";
}

// Any std::logic_error is right for a rank that is not there.
std::string refusal(const anymesh::Topology& mesh, int rank) {
  try {
    return coordinates(mesh, rank);
  } catch (const std::logic_error&) {
    return "std::logic_error";
  }
}

}  // namespace

void coord_of() {
  for (const int pp : {2, 1, 3, 4}) {
    for (const int dp : {2, 1, 3, 5}) {
      for (const int tp : {2, 1, 4}) {
        const anymesh::Topology mesh{.pp_size = pp, .dp_size = dp, .tp_size = tp};
        const int ranks = mesh.world_size();
        const auto input = [&](int rank) {
          return "pp " + std::to_string(pp) + ", dp " + std::to_string(dp) + ", tp " +
                 std::to_string(tp) + ", rank " + std::to_string(rank);
        };
        for (int rank = 0; rank < ranks; ++rank)
          answer(input(rank), "", [&] { return std::vector{coordinates(mesh, rank)}; });
        for (const int rank : {-1, ranks})
          answer(input(rank), "", [&] { return std::vector{refusal(mesh, rank)}; });
      }
    }
  }
}

}  // namespace write_it
