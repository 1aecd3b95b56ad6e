#include "framework/pipeline/schedule.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace anymesh {
namespace {

// Returns one pass of all micro-batches through all chunks of a stage.
std::vector<Step> pass(Op op, const PipelineShape& shape) {
  std::vector<Step> steps;
  for (int begin = 0; begin < shape.micro_batches; begin += shape.stages) {
    const int end = std::min(begin + shape.stages, shape.micro_batches);
    for (int i = 0; i < shape.chunks; ++i)
      for (int micro_batch = begin; micro_batch < end; ++micro_batch)
        steps.push_back({op, micro_batch, op == Op::Forward ? i : shape.chunks - 1 - i});
  }
  return steps;
}

using Place = std::pair<int, Step>;  // a stage and its step

// Returns who needs the result of a step; nobody needs that of the model's two ends.
std::optional<Place> user_of(int stage, const Step& step, int stages, int chunks) {
  if (step.op == Op::Weights) return {};
  const bool forward = step.op == Op::Forward;
  const int part = step.chunk * stages + stage + (forward ? 1 : -1);
  if (part < 0 || part == stages * chunks) return {};
  return Place{part % stages, {step.op, step.micro_batch, part / stages}};
}

bool needs_input(int stage, const Step& step, int stages, int chunks) {
  if (step.op == Op::Weights) return false;
  const int part = step.chunk * stages + stage;
  return part != (step.op == Op::Forward ? 0 : stages * chunks - 1);
}

}  // namespace

std::vector<Step> forwards(const PipelineShape& shape) { return pass(Op::Forward, shape); }

std::vector<Step> one_f_one_b(int stage, const PipelineShape& shape) {
  const std::vector<Step> forward = pass(Op::Forward, shape), backward = pass(Op::Backward, shape);
  const int later = shape.stages - stage - 1,
            fill = shape.chunks == 1 ? later : 2 * later + (shape.chunks - 1) * shape.stages;
  const size_t warmup = std::min(static_cast<size_t>(fill), forward.size());
  std::vector<Step> steps(forward.begin(), forward.begin() + static_cast<int64_t>(warmup));
  for (size_t i = 0; i < backward.size(); ++i) {
    if (warmup + i < forward.size()) steps.push_back(forward[warmup + i]);
    steps.push_back(backward[i]);
  }
  return steps;
}

std::vector<Step> zero_bubble(int stage, const PipelineShape& shape) {
  std::vector<Step> steps;
  for (const Step& step : one_f_one_b(stage, shape)) {
    steps.push_back(step);
    if (step.op == Op::Backward && step.micro_batch >= stage)
      steps.push_back({Op::Weights, step.micro_batch - stage});
  }
  for (int i = std::max(shape.micro_batches - stage, 0); i < shape.micro_batches; ++i)
    steps.push_back({Op::Weights, i});
  return steps;
}

std::vector<Slot> slots_of(int stage, const std::vector<std::vector<Step>>& steps_of_stages,
                           int chunks) {
  const auto stages = static_cast<int>(steps_of_stages.size());
  std::vector<size_t> next(steps_of_stages.size());
  std::set<Place> inputs;  // that are there
  std::vector<Slot> slots;
  for (;;) {
    std::vector<Place> done;
    bool is_over = true;
    for (int at = 0; at < stages; ++at) {
      const std::vector<Step>& steps = steps_of_stages[static_cast<size_t>(at)];
      size_t& number = next[static_cast<size_t>(at)];
      if (number == steps.size()) continue;
      is_over = false;
      const Step& step = steps[number];
      if (needs_input(at, step, stages, chunks) && inputs.erase({at, step}) == 0) continue;
      done.emplace_back(at, step);
      ++number;
    }
    if (is_over) return slots;
    if (done.empty()) throw std::logic_error("the stages of a pipeline wait for each other");
    Slot& slot = slots.emplace_back();
    for (const auto& [at, step] : done) {
      const std::optional<Place> user = user_of(at, step, stages, chunks);
      if (at == stage) slot.step = step;
      if (!user) continue;
      if (at == stage) slot.to = user->first;
      if (user->first == stage) slot.arrivals.push_back({at, user->second});
      inputs.insert(*user);
    }
  }
}

}  // namespace anymesh
