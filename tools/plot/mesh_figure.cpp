#include <algorithm>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/zero/stage.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

// The places of the cells. A row has the tp ranks of as many dp ranks as fit into it; the other dp
// ranks follow in blocks below.
class MeshPlaces {
 public:
  explicit MeshPlaces(const Topology& mesh)
      : mesh_(mesh),
        groups_(std::clamp(8 / mesh.tp_size, 1, mesh.dp_size)),
        cell_(std::min(160.0, (kWidth - kBetween * (groups_ - 1)) / (groups_ * mesh.tp_size))) {}

  double cell() const { return cell_; }
  double thick() const { return mesh_.pp_size > 4 ? 6 : 9; }  // of a bar
  double row() const { return 16 + 3 * (thick() + 3) + 12; }
  double x(Coord at) const { return kLeft + at.dp % groups_ * group() + at.tp * cell_; }
  double y(Coord at) const { return block(at.dp) + kCaption + at.pp * row(); }
  double block(int dp) const {
    const int above = dp / groups_;  // rows of groups
    return kTop + above * (kCaption + mesh_.pp_size * row() + 14);
  }
  double bottom() const { return block(mesh_.dp_size - 1) + kCaption + mesh_.pp_size * row(); }
  double width() const { return groups_ * group() - kBetween; }
  bool begins_row(Coord at) const { return at.tp == 0 && at.dp % groups_ == 0; }

 private:
  static constexpr double kBetween = 16, kCaption = 42;

  double group() const { return mesh_.tp_size * cell_ + kBetween; }

  Topology mesh_;
  int groups_;  // dp ranks in a row
  double cell_;
};

// Draws a bar for each kind of state. The stage's whole state is grey; the rank's partition of its
// tp slice is coloured.
std::string holdings(const Topology& mesh, Coord at, ZeroStage stage, const MeshPlaces& places) {
  const bool cuts[] = {stage.partitions_parameters(), stage.partitions_gradients(),
                       stage.partitions_optimizer()};
  const double x = places.x(at), all = places.cell() - 10, slice = all / mesh.tp_size;
  double y = places.y(at) + 16;
  std::string svg;
  for (size_t kind = 0; kind < 3; ++kind) {
    const double part = cuts[kind] ? slice / mesh.dp_size : slice;
    svg += rectangle(x, y, all, places.thick(), "empty") +
           rectangle(x + slice * at.tp + (cuts[kind] ? part * at.dp : 0), y, std::max(part, 1.2),
                     places.thick(), series(kind));
    y += places.thick() + 3;
  }
  return svg;
}

std::string captions(const Topology& mesh, int dp, const MeshPlaces& places) {
  const double x = places.x({.dp = dp}), y = places.block(dp) + 4;
  std::string svg = text_at(x, y, "head", "dp " + std::to_string(dp)) +
                    line_at(x, y + 7, x + mesh.tp_size * places.cell() - 10, y + 7, "axis");
  for (int tp = 0; tp < mesh.tp_size; ++tp)
    svg += text_at(places.x({.dp = dp, .tp = tp}), y + 22, "tick", "tp " + std::to_string(tp));
  return svg;
}

std::string layers_of(const GptStage& stage) {
  std::string text = stage.layers.size() == 1 ? "layer " : "layers ";
  for (const LayerRange& chunk : stage.chunks) {
    if (&chunk != &stage.chunks.front()) text += ", ";
    text += std::to_string(chunk.begin);
    if (chunk.end - chunk.begin > 1) text += "-" + std::to_string(chunk.end - 1);
  }
  return text;
}

}  // namespace

Figure mesh_figure(const RecordedRun& recorded) {
  const RunSettings run = settings_of(recorded);
  const Topology mesh = run.config.parallel.topology(recorded.mesh.dp_size, run.gpt.num_layers);
  if (mesh.tp_size > 16 || mesh.pp_size > 16 || mesh.world_size() > 256)
    throw_error("expected a mesh of up to 256 ranks, with tensor and pipeline up to 16");
  const MeshPlaces places(mesh);
  const bool narrow = places.cell() < 64;
  std::string svg;
  for (int dp = 0; dp < mesh.dp_size; ++dp) svg += captions(mesh, dp, places);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coord at = mesh.coord_of(rank);
    const double x = places.x(at), y = places.y(at);
    if (places.begins_row(at)) {
      svg += text_at(x - 12, y + 11, "label end", "stage " + std::to_string(at.pp)) +
             text_at(x - 12, y + 27, "tick end", layers_of(GptStage(run.gpt, mesh, at.pp)));
    }
    svg += text_at(x, y + 11, "label", (narrow ? "" : "rank ") + std::to_string(rank)) +
           holdings(mesh, at, run.config.engine.zero.stage, places);
  }
  const int zero = run.config.engine.zero.stage;
  return {string_printf("Who holds what on tp %d x pp %d x dp %d with ZeRO %d", mesh.tp_size,
                        mesh.pp_size, mesh.dp_size, zero),
          string_printf("A cell for each of %d ranks, a row for each of %d stages. Bars show which "
                        "part of its stage's parameters, gradients and optimizer state a rank "
                        "holds. Tensor parallel ranks, side by side, hold slices. ",
                        mesh.world_size(), mesh.pp_size) +
              (zero == 0 ? "Data parallel ranks hold copies."
                         : "Data parallel ranks hold partitions of what ZeRO cuts, else copies."),
          svg,
          places.bottom(),
          {"parameters", "gradients", "optimizer state"},
          std::max(places.width(), kWidth)};
}

}  // namespace anymesh
