#include "tools/plot/mesh_figure.h"

#include <cstdio>

#include "framework/comm/topology.h"
#include "framework/pipeline/schedule.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

struct MeshRun {
  Topology mesh{0, 0, 0};
  int zero = 0, layers = 0;
};

MeshRun read_mesh(const std::string& path) {
  MeshRun run;
  auto& [mesh, zero, layers] = run;
  for (const std::string& line : lines_of(path)) {
    std::sscanf(line.c_str(), "mesh: tensor %4d x pipeline %4d x data %4d", &mesh.tp_size,
                &mesh.pp_size, &mesh.dp_size);
    std::sscanf(line.c_str(), "  --num-layers %9d", &layers);
    std::sscanf(line.c_str(), "  --zero-stage %4d", &zero);
  }
  const int across = mesh.tp_size * mesh.dp_size;
  if (mesh.tp_size < 1 || mesh.dp_size < 1 || mesh.pp_size < 1 || mesh.pp_size > layers ||
      across > 16 || mesh.pp_size > 16)
    throw_error(
        path,
        ": expected 'mesh: tensor T x pipeline P x data D' and '--num-layers L' as pretrain_gpt "
        "prints them, with T x D and P up to 16");
  return run;
}

}  // namespace

// Draws a row for each stage, with a cell for each rank in the order of rank numbers. A cell has a
// bar for each kind of state. The stage's whole state is grey; the rank's partition of its tp slice
// is coloured.
Figure mesh_figure(const std::string& path) {
  constexpr double kCell = 160, kCellHeight = 96, kThick = 10;
  const auto [mesh, zero, layers] = read_mesh(path);
  const int across = mesh.dp_size * mesh.tp_size;
  std::string svg;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coord at = mesh.coord_of(rank);
    const double x = kLeft + kCell * (rank % across), y = kTop + kCellHeight * at.pp;
    if (rank % across == 0) {
      const LayerRange range = layers_of_stage(layers, mesh.pp_size, at.pp);
      svg += text_at(x - 12, y + 12, "label end", "stage " + std::to_string(at.pp)) +
             text_at(x - 12, y + 28, "tick end",
                     string_printf("layers %d-%d", range.begin, range.end - 1));
    }
    svg += text_at(x, y + 12, "head", "rank " + std::to_string(rank)) +
           text_at(x, y + 28, "tick", string_printf("tp %d, pp %d, dp %d", at.tp, at.pp, at.dp));
    for (int kind = 0; kind < 3; ++kind) {
      const bool cut = zero >= 3 - kind;  // 3 cuts parameters, 2 gradients, 1 the optimizer
      const double bar = y + 36 + (kThick + 4) * kind, all = kCell - 16, slice = all / mesh.tp_size,
                   part = cut ? slice / mesh.dp_size : slice;
      svg +=
          rectangle(x, bar, all, kThick, "empty") +
          rectangle(x + slice * at.tp + (cut ? part * at.dp : 0), bar, part, kThick, series(kind));
    }
  }
  return {string_printf("Who holds what on tp %d x pp %d x dp %d with ZeRO %d", mesh.tp_size,
                        mesh.pp_size, mesh.dp_size, zero),
          string_printf("A cell for each of %d ranks, with bars of the parameters, gradients and "
                        "optimizer state that it holds of its stage.",
                        mesh.world_size()),
          svg,
          kTop + kCellHeight * mesh.pp_size,
          {"parameters", "gradients", "optimizer state"},
          kCell * across};
}

}  // namespace anymesh
