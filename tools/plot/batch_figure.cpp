#include "tools/plot/batch_figure.h"

#include <stdexcept>

#include "framework/data/batch_loader.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/zero/stage.h"
#include "tools/plot/run_start.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

constexpr double kSums = 170;  // right of the samples: gradients and their sum
constexpr double kBetweenBatches = 10, kDown = 62;

std::string sample_at(double x, double y, double width, int64_t sample, int rank) {
  std::string svg = rectangle(x, y, width - 2, kBar, "empty") +
                    rectangle(x, y + kBar, width - 2, 4, series(rank));
  const std::string number = std::to_string(sample);
  if (width > 4 + 6.5 * static_cast<double>(number.size()))
    svg += text_at(x + width / 2 - 1, y + 16, "tick mid", number);
  return svg;
}

// Draws the samples of a dp rank, micro-batch by micro-batch.
std::string row_of_rank(const BatchSlice& slice, int64_t micro_batches, double width, double y) {
  std::string svg;
  for (int64_t m = 0; m < micro_batches; ++m)
    for (int64_t row = 0; row < slice.micro_batch_size; ++row) {
      const auto place = static_cast<double>(m * slice.micro_batch_size + row);
      svg += sample_at(kLeft + place * width + kBetweenBatches * static_cast<double>(m), y, width,
                       slice.sample_index(0, m, row), static_cast<int>(slice.dp_rank));
    }
  return svg;
}

// Returns the dp rank that reads a sample of the first step.
int rank_of(int64_t sample, int64_t rows, int dp) {
  for (int rank = 0; rank < dp; ++rank) {
    const BatchSlice slice{rows, dp, rank};
    for (int64_t m = 0; slice.sample_index(0, m, 0) <= sample; ++m)
      if (sample < slice.sample_index(0, m, 0) + rows) return rank;
  }
  throw std::logic_error("sample " + std::to_string(sample) + " is of no rank");
}

const char* sum_of_gradients(ZeroStage stage) {
  if (stage.partitions_gradients()) return "reduce-scatter, each micro-batch";
  return stage.partitions_optimizer() ? "reduce-scatter, once a step" : "all-reduce, once a step";
}

}  // namespace

Figure batch_figure(const std::string& path) {
  const RunStart run = read_run_start(path);
  const int64_t rows = run.config.batch.micro_batch_size, count = run.plan.num_microbatches,
                batch = run.plan.global_batch_size;
  const int dp = run.plan.dp;
  if (dp > 16 || rows * count > 32)
    throw_error(path, ": expected up to 16 data parallel ranks and 32 samples of each, found ", dp,
                " and ", rows * count);
  const double width = (kWidth - kSums - kBetweenBatches * static_cast<double>(count - 1)) /
                       static_cast<double>(rows * count),
               each = kWidth / static_cast<double>(batch), first = kTop + 84;
  std::string svg = text_at(kLeft - 12, kTop + 17, "label end", "step 1");
  for (int64_t sample = 0; sample < batch; ++sample)
    svg += sample_at(kLeft + each * static_cast<double>(sample), kTop, each, sample,
                     rank_of(sample, rows, dp));
  for (int rank = 0; rank < dp; ++rank) {
    const BatchSlice slice{rows, dp, rank};
    const double y = first + kDown * rank, gradient = kLeft + kWidth - kSums + 20;
    svg += text_at(kLeft - 12, y + 17, "label end", "dp " + std::to_string(rank)) +
           row_of_rank(slice, count, width, y) +
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
      svg, last + kBar + 46};
}

}  // namespace anymesh
