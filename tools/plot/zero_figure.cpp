#include <algorithm>
#include <array>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/zero/partition_layout.h"
#include "framework/zero/stage.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

constexpr double kColumn = 142, kStateBar = 5, kRankRow = 29, kCaption = 26;

enum State : unsigned { kParameters = 1, kGradients = 2, kOptimizer = 4, kAll = 7 };
constexpr std::array kStates{kParameters, kGradients, kOptimizer};

// A moment of a step, and for each ZeRO stage what a rank uses then and the communication.
struct Moment {
  const char *name, *often;
  std::array<unsigned, 4> uses;  // states
  std::array<const char*, 4> communication;
};
constexpr unsigned kBoth = kParameters | kGradients;
constexpr std::array<Moment, 5> kStepMoments{{
    {"forward",
     "each micro-batch",
     {kParameters, kParameters, kParameters, kParameters},
     {"", "", "", "all-gather"}},
    {"backward",
     "each micro-batch",
     {kBoth, kBoth, kBoth, kBoth},
     {"", "", "reduce-scatter", "all-gather, reduce-scatter"}},
    {"reduce",
     "once a step",
     {kGradients, kGradients, 0, 0},
     {"all-reduce", "reduce-scatter", "", ""}},
    {"step", "once a step", {kAll, kAll, kAll, kAll}, {"", "", "", ""}},
    {"gather",
     "once a step",
     {0, kParameters, kParameters, 0},
     {"", "all-gather", "all-gather", ""}},
}};

bool partitions(ZeroStage stage, State state) {
  if (state == kParameters) return stage.partitions_parameters();
  return state == kGradients ? stage.partitions_gradients() : stage.partitions_optimizer();
}

// Draws a rank's parts of a state: strong where they are used at this moment, else pale. A thin
// line stands for parameters that are gathered a unit at a time.
std::string bar(ZeroStage stage, const Moment& moment, size_t kind, ElementRange mine, int64_t all,
                double x, double y) {
  const State state = kStates[kind];
  const double width = kColumn - 16, one = width / static_cast<double>(all);
  const double from = x + one * static_cast<double>(mine.begin),
               part = std::max(1.0, one * static_cast<double>(mine.count));
  const std::string color = series(kind), pale = color + " pale";
  const unsigned uses = moment.uses[stage.number()];
  const bool cut = partitions(stage, state), used = uses & state,
             only_mine = uses == kAll && stage.partitions_optimizer(),
             gathers_units = cut && state == kParameters && used && uses != kAll;
  std::string svg = rectangle(x, y, width, kStateBar, "empty");
  if (!cut) svg += rectangle(x, y, width, kStateBar, used && !only_mine ? color : pale);
  if (cut || (used && only_mine)) svg += rectangle(from, y, part, kStateBar, used ? color : pale);
  if (gathers_units) svg += rectangle(x, y + kStateBar / 2 - 0.75, width, 1.5, color);
  return svg;
}

// Draws a stage's ranks below its caption.
std::string panel(ZeroStage stage, int ranks, int64_t parameters, double top) {
  const PartitionLayout layout({parameters}, ranks, stage.partitions_parameters());
  std::string svg = text_at(kLeft - 12, top, "head end", "ZeRO " + std::to_string(stage.number()));
  for (int rank = 0; rank < ranks; ++rank) {
    const double row = top + 8 + kRankRow * rank;
    svg += text_at(kLeft - 12, row + 14, "tick end", "dp " + std::to_string(rank));
    ElementRange mine;
    for (const Fragment& f : layout.fragments(rank)) mine = {f.param_start, f.numel};
    double x = kLeft;
    for (const Moment& moment : kStepMoments) {
      if (rank == 0 && ranks > 1)
        svg += text_at(x, top, "tick", moment.communication[stage.number()]);
      for (size_t kind = 0; kind < kStates.size(); ++kind)
        svg += bar(stage, moment, kind, mine, parameters, x,
                   row + (kStateBar + 2) * static_cast<double>(kind));
      x += kColumn;
    }
  }
  return svg;
}

}  // namespace

Figure zero_figure(const RecordedRun& recorded) {
  const int ranks = recorded.mesh.dp_size;
  if (ranks > 8) throw_error("expected up to 8 data parallel ranks, found ", ranks);
  std::string svg;
  double x = kLeft;
  for (const Moment& moment : kStepMoments) {
    svg += text_at(x, kTop + 2, "head", moment.name) + text_at(x, kTop + 17, "tick", moment.often);
    x += kColumn;
  }
  double y = kTop + 46;
  for (int stage = 0; stage <= 3; ++stage) {
    svg += line_at(kLeft - 72, y - 18, kLeft + 5 * kColumn - 16, y - 18, "grid") +
           panel(stage, ranks, std::max<int64_t>(recorded.parameters, 1), y);
    y += kCaption + 12 + kRankRow * ranks;
  }
  svg += text_at(kLeft, y - 4, "tick",
                 "strong: used at this moment; pale: only held; thin line: all of it, gathered a "
                 "unit at a time and freed");
  return {string_printf("Who holds and uses what in a step, on %d data parallel rank%s", ranks,
                        ranks > 1 ? "s" : ""),
          string_printf("For each ZeRO stage from 0 to 3 a row for each of %d ranks, with columns "
                        "forward, backward, reduce, step and gather. Bars show which part of the "
                        "parameters, gradients and optimizer state a rank holds and uses then: at "
                        "stage 0 all, at 1 its partition of the optimizer state, at 2 also of the "
                        "gradients, at 3 also of the parameters.",
                        ranks),
          svg,
          y - 8,
          {"parameters", "gradients", "optimizer state"},
          5 * kColumn - 16};
}

}  // namespace anymesh
