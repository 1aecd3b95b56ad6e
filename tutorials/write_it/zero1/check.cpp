#include <torch/csrc/autograd/autograd.h>

#include "framework/zero/zero_optimizer.h"
#include "tutorials/write_it/on_ranks.h"

namespace write_it {
namespace {

using namespace anymesh;

struct Run {
  std::vector<int64_t> numels;
  int dp, stage;
  bool in_bf16 = false;
  double scale = 1;  // of the gradients
};

// A rank's values after the gradients of one step are reduced.
struct Result {
  std::vector<std::string> norm, gradient, calls;
};

// Element i of a parameter has the gradient (rank + 1) (i + 1) scale.
Result reduced(const Run& run, const CommPtr& world) {
  CommCounts counts;
  const CommPtr alone = world->split(world->rank(), 0);
  const ProcessGrid grid(world, {.dp_size = run.dp}, &counts);
  ParamBuilder builder({alone}, torch::kFloat, /*seed=*/5);
  for (const int64_t numel : run.numels)
    builder.add({.name = std::to_string(numel), .shape = {numel}}, Init::constant(0));
  const std::vector<ParamSpec> params = builder.take();
  ZeroOptimizer optimizer(params, grid, {.stage = run.stage, .grad_reduce_in_bf16 = run.in_bf16});
  counts.reset();
  for (const ParamSpec& spec : params) {
    const torch::Tensor gradient =
        at::arange(1, spec.tensor.numel() + 1, torch::kFloat) * ((world->rank() + 1) * run.scale);
    torch::autograd::backward({spec.tensor.view_as(spec.tensor)}, {gradient});
  }
  optimizer.end_backward();
  Result result{.norm = {digits(optimizer.reduce_gradients())}};
  result.gradient = words(optimizer.groups()[0].gradient);
  for (size_t verb = 0; verb < kVerbs; ++verb)
    if (const Traffic& t = counts.groups["dp"][verb]; t.calls > 0)
      result.calls.push_back(kVerbNames[verb] + (" of " + std::to_string(t.bytes)) + " bytes");
  return result;
}

void check(const Run& run) {
  OnRanks<Result> results(run.dp, [&](const CommPtr& world) { return reduced(run, world); });
  for (int rank = 0; rank < run.dp; ++rank) {
    const std::string input = "ZeRO " + std::to_string(run.stage) + ", parameters of " +
                              list(run.numels) + ", dp " + std::to_string(run.dp) +
                              (run.in_bf16 ? ", --grad-reduce-in-bf16" : "") +
                              (run.scale == 1 ? "" : ", gradients times " + digits(run.scale)) +
                              ", rank " + std::to_string(rank);
    answer(input, "gradient", [&] { return results.of(rank).gradient; });
    answer(input, "calls", [&] { return results.of(rank).calls; });
    answer(input + ": norm", "", [&] { return results.of(rank).norm; });
  }
}

}  // namespace

void zero1() {
  const std::vector<std::vector<int64_t>> groups{{6}, {5, 1, 7}, {3, 20, 9}};
  for (const auto& numels : groups) {
    for (const int stage : {1, 0})
      for (const int dp : {2, 1, 3, 4}) check({numels, dp, stage});
    check({numels, 2, 1, true});
    check({numels, 2, 1, true, 1.01});
    check({numels, 3, 1, false, 1.01});
  }
}

}  // namespace write_it
