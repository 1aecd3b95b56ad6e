#include "framework/data/batch_loader.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/zero/stage.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

constexpr double kSums = 170;  // right of the samples: gradients and their sum
constexpr double kBetweenBatches = 10, kDown = 62;

std::string sample_at(double x, double y, double width, int64_t sample, int rank) {
  return rectangle(x, y, width - 2, kBar, "empty") +
         rectangle(x, y + kBar, width - 2, 4, series(rank)) +
         text_within(x - 1, width, y, "tick", std::to_string(sample));
}

// Draws the samples of a dp rank, micro-batch by micro-batch. Adds each to the row of the step,
// where a sample is `each` wide.
std::string row_of_rank(const BatchSlice& slice, int64_t micro_batches, double width, double y,
                        double each, std::string& step) {
  std::string svg;
  const auto rank = static_cast<int>(slice.dp_rank);
  for (int64_t m = 0; m < micro_batches; ++m)
    for (int64_t row = 0; row < slice.micro_batch_size; ++row) {
      const auto place = static_cast<double>(m * slice.micro_batch_size + row);
      const int64_t sample = slice.sample_index(0, m, row);
      svg += sample_at(kLeft + place * width + kBetweenBatches * static_cast<double>(m), y, width,
                       sample, rank);
      step += sample_at(kLeft + each * static_cast<double>(sample), kTop, each, sample, rank);
    }
  return svg;
}

const char* sum_of_gradients(ZeroStage stage) {
  if (stage.partitions_gradients()) return "reduce-scatter, each micro-batch";
  return stage.partitions_optimizer() ? "reduce-scatter, once a step" : "all-reduce, once a step";
}

}  // namespace

Figure batch_figure(const RecordedRun& recorded) {
  const RunSettings run = settings_of(recorded);
  const int64_t rows = run.config.batch.micro_batch_size, count = run.plan.num_microbatches,
                batch = run.plan.global_batch_size;
  const int dp = run.plan.dp;
  if (dp > 16 || rows * count > 32)
    throw_error("expected up to 16 data parallel ranks and 32 samples of each, found ", dp, " and ",
                rows * count);
  const double width = (kWidth - kSums - kBetweenBatches * static_cast<double>(count - 1)) /
                       static_cast<double>(rows * count),
               each = kWidth / static_cast<double>(batch), first = kTop + 84;
  std::string step = row_label(kTop, "step 1"), svg;
  for (int rank = 0; rank < dp; ++rank) {
    const BatchSlice slice{rows, dp, rank};
    const double y = first + kDown * rank, gradient = kLeft + kWidth - kSums + 20;
    svg += row_label(y, "dp " + std::to_string(rank)) +
           row_of_rank(slice, count, width, y, each, step) +
           rectangle(gradient, y, 92, kBar + 4, series(rank)) +
           text_at(gradient, y + kBar + 19, "tick",
                   string_printf("of %ld sample%s", rows * count, rows * count > 1 ? "s" : "")) +
           line_at(gradient + 92, y + 14, gradient + 112, y + 14, "axis");
  }
  for (int64_t m = 0; m < count; ++m)
    svg += text_at(
        kLeft + static_cast<double>(m) * (static_cast<double>(rows) * width + kBetweenBatches),
        first - 12, "tick",
        (width * static_cast<double>(rows) > 84 ? "micro-batch " : "") + std::to_string(m));
  const double last = first + kDown * (dp - 1), x = kLeft + kWidth - kSums + 132;
  svg += text_at(x - 112, first - 12, "tick", "gradients") +
         line_at(x, first + 14, x, last + 14, "axis") +
         text_at(kLeft + kWidth, last + kBar + 42, "label end",
                 dp > 1 ? sum_of_gradients(run.config.engine.zero.stage) : "nothing to reduce");
  return {
      string_printf("%ld samples of a step on %d data parallel ranks", batch, dp),
      string_printf("The samples 0 to %ld of step 1 in a row, coloured by the data parallel rank "
                    "that reads them. Below, a row for each of %d ranks with its samples in %ld "
                    "micro-batches of %ld, and its gradients, which are then summed over the "
                    "ranks.",
                    batch - 1, dp, count, rows),
      step + svg, last + kBar + 46};
}

}  // namespace anymesh
