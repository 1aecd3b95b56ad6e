#include "framework/comm/counting_communicator.h"
#include "framework/zero/sum_reductions.h"
#include "tutorials/write_it/on_ranks.h"

namespace write_it {
namespace {

using namespace anymesh;

struct Run {
  std::vector<int64_t> numels;
  int dp, stage;
  int64_t most = 1000;  // elements at once
  std::optional<torch::Dtype> sent = {};
  double scale = 1;  // of the gradients
};

// A rank's values after the gradients of one step are reduced.
struct Result {
  std::vector<std::string> gradient, calls;
};

// Element i of a rank's gradients is (rank + 1) (i + 1) scale, and the padding is 0.
Result reduced(const Run& run, const CommPtr& world) {
  CommCounts counts;
  const bool scatters = run.stage == 1;
  const CommPtr partitions = scatters ? world : world->split(world->rank(), 0);
  ParamGroup group{.replicas = counted(world, "dp", &counts),
                   .partitions = partitions,
                   .layout = {run.numels, partitions->size(), false}};
  for (const int64_t numel : run.numels) group.params.push_back({.shape = {numel}, .units = {0}});
  const int64_t partition = group.layout.partition_numel(), numel = group.layout.flat().numel();
  group.sums = torch::zeros({partition * partitions->size()});
  group.sums.narrow(0, 0, numel)
      .copy_(at::arange(1, numel + 1) * ((world->rank() + 1) * run.scale));
  SumReductions reductions;
  reductions.add(group, scatters, run.sent, run.most);
  reductions.finish();
  Result result{.gradient = words(group.sums.narrow(0, partitions->rank() * partition, partition))};
  for (size_t verb = 0; verb < kVerbs; ++verb)
    if (const Traffic& t = counts.groups["dp"][verb]; t.calls > 0)
      result.calls.push_back(std::to_string(t.calls) + " " + kVerbNames[verb] + " of " +
                             std::to_string(t.bytes) + " bytes");
  return result;
}

void check(const Run& run) {
  OnRanks<Result> results(run.dp, [&](const CommPtr& world) { return reduced(run, world); });
  for (int rank = 0; rank < run.dp; ++rank) {
    const std::string input =
        "ZeRO " + std::to_string(run.stage) + ", parameters of " + list(run.numels) + ", dp " +
        std::to_string(run.dp) +
        (run.most < 1000 ? ", " + std::to_string(run.most) + " at once" : "") +
        (run.sent ? ", sent in bf16" : "") +
        (run.scale == 1 ? "" : ", gradients times " + digits(run.scale)) + ", rank " +
        std::to_string(rank);
    answer(input, "gradient", [&] { return results.of(rank).gradient; });
    answer(input, "calls", [&] { return results.of(rank).calls; });
  }
}

}  // namespace

void zero1() {
  const std::vector<std::vector<int64_t>> groups{{6}, {5, 1, 7}, {3, 20, 9}};
  for (const auto& numels : groups) {
    for (const int stage : {1, 0}) {
      for (const int dp : {2, 1, 3, 4}) {
        check({numels, dp, stage});
        check({numels, dp, stage, 4});
      }
    }
    check({.numels = numels, .dp = 2, .stage = 1, .sent = torch::kBFloat16});
    check({.numels = numels, .dp = 2, .stage = 1, .sent = torch::kBFloat16, .scale = 1.01});
    check({.numels = numels, .dp = 3, .stage = 1, .scale = 1.01});
  }
}

}  // namespace write_it
