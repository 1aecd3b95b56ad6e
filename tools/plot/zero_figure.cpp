#include "tools/plot/zero_figure.h"

#include <algorithm>
#include <array>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/zero/partition_layout.h"
#include "framework/zero/stage.h"
#include "tools/plot/run_start.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

constexpr double kColumn = 142, kThick = 5, kRank = 29, kCaption = 26;

enum class Moment { kForward, kBackward, kReduce, kStep, kGather };
struct Column {
  Moment moment;
  const char *name, *often;
};
constexpr std::array<Column, 5> kColumns{{{Moment::kForward, "forward", "each micro-batch"},
                                          {Moment::kBackward, "backward", "each micro-batch"},
                                          {Moment::kReduce, "reduce", "once a step"},
                                          {Moment::kStep, "step", "once a step"},
                                          {Moment::kGather, "gather", "once a step"}}};

enum class State { kParameters, kGradients, kOptimizer };
constexpr std::array kStates{State::kParameters, State::kGradients, State::kOptimizer};

bool partitions(ZeroStage stage, State state) {
  if (state == State::kParameters) return stage.partitions_parameters();
  return state == State::kGradients ? stage.partitions_gradients() : stage.partitions_optimizer();
}

// Whether ZeRO's weights of a unit are put together while it runs.
bool gathers_units(ZeroStage stage, Moment moment) {
  return stage.partitions_parameters() &&
         (moment == Moment::kForward || moment == Moment::kBackward);
}

// Whether all ranks get the weights that others have updated.
bool gathers_updates(ZeroStage stage) {
  return stage.partitions_optimizer() && !stage.partitions_parameters();
}

bool uses(ZeroStage stage, Moment moment, State state) {
  switch (moment) {
    case Moment::kForward:
      return state == State::kParameters;
    case Moment::kBackward:
      return state != State::kOptimizer;
    case Moment::kReduce:
      return state == State::kGradients && !stage.partitions_gradients();
    case Moment::kStep:
      return true;
    case Moment::kGather:
      return state == State::kParameters && gathers_updates(stage);
  }
  return false;
}

std::string communication(ZeroStage stage, Moment moment) {
  switch (moment) {
    case Moment::kForward:
      return stage.partitions_parameters() ? "all-gather" : "";
    case Moment::kBackward:
      return (stage.partitions_parameters() ? std::string("all-gather, ") : "") +
             (stage.partitions_gradients() ? "reduce-scatter" : "");
    case Moment::kReduce:
      if (stage.partitions_gradients()) return "";
      return stage.partitions_optimizer() ? "reduce-scatter" : "all-reduce";
    case Moment::kStep:
      return "";
    case Moment::kGather:
      return gathers_updates(stage) ? "all-gather" : "";
  }
  return "";
}

// Draws a rank's parts of a state: strong where they are used at this moment, else pale.
std::string bar(ZeroStage stage, Moment moment, State state, ElementRange mine, int64_t all,
                double x, double y) {
  const double width = kColumn - 16, one = width / static_cast<double>(all);
  const double from = x + one * static_cast<double>(mine.begin),
               part = std::max(1.0, one * static_cast<double>(mine.count));
  const std::string color = series(static_cast<size_t>(state)), pale = color + " pale";
  const bool cut = partitions(stage, state), used = uses(stage, moment, state),
             only_mine = moment == Moment::kStep && stage.partitions_optimizer();
  std::string svg = rectangle(x, y, width, kThick, "empty");
  if (!cut) svg += rectangle(x, y, width, kThick, used && !only_mine ? color : pale);
  if (cut || (used && only_mine)) svg += rectangle(from, y, part, kThick, used ? color : pale);
  if (state == State::kParameters && gathers_units(stage, moment))
    svg += rectangle(x, y + kThick / 2 - 0.75, width, 1.5, color);
  return svg;
}

// Draws a stage's ranks below its caption.
std::string panel(ZeroStage stage, int ranks, int64_t parameters, double top) {
  const PartitionLayout layout({parameters}, ranks, stage.partitions_parameters());
  std::string svg = text_at(kLeft - 12, top, "head end", "ZeRO " + std::to_string(stage.number()));
  for (size_t c = 0; c < kColumns.size(); ++c) {
    const double x = kLeft + kColumn * static_cast<double>(c);
    const Moment moment = kColumns[c].moment;
    if (ranks > 1) svg += text_at(x, top, "tick", communication(stage, moment));
    for (int rank = 0; rank < ranks; ++rank) {
      double y = top + 8 + kRank * rank;
      ElementRange mine;
      for (const Fragment& f : layout.fragments(rank)) mine = {f.param_start, f.numel};
      for (const State state : kStates) {
        svg += bar(stage, moment, state, mine, parameters, x, y);
        y += kThick + 2;
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank)
    svg += text_at(kLeft - 12, top + 22 + kRank * rank, "tick end", "dp " + std::to_string(rank));
  return svg;
}

}  // namespace

Figure zero_figure(const std::string& path) {
  const RunStart run = read_run_start(path);
  const int ranks = run.mesh.dp_size;
  if (ranks > 8) throw_error(path, ": expected up to 8 data parallel ranks, found ", ranks);
  std::string svg;
  for (size_t c = 0; c < kColumns.size(); ++c) {
    const double x = kLeft + kColumn * static_cast<double>(c);
    svg += text_at(x, kTop + 2, "head", kColumns[c].name) +
           text_at(x, kTop + 17, "tick", kColumns[c].often);
  }
  double y = kTop + 46;
  for (int stage = 0; stage <= 3; ++stage) {
    svg += line_at(kLeft - 72, y - 18, kLeft + 5 * kColumn - 16, y - 18, "grid") +
           panel(stage, ranks, run.parameters, y);
    y += kCaption + 12 + kRank * ranks;
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
