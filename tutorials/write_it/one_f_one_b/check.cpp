#include "framework/pipeline/schedule.h"
#include "tutorials/write_it/checks.h"

namespace write_it {
namespace {

using namespace anymesh;

// Returns "F0", and with several chunks "F0.1" for chunk 1.
std::string word(const Step& step, int chunks) {
  const char op = step.op == Op::Forward ? 'F' : step.op == Op::Backward ? 'B' : 'W';
  return op + std::to_string(step.micro_batch) +
         (chunks > 1 ? "." + std::to_string(step.chunk) : "");
}

void all_stages(const PipelineShape& shape) {
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::string input = "stage " + std::to_string(stage) + " of " + std::to_string(shape.stages) +
                        ", " + std::to_string(shape.micro_batches) + " micro-batches";
    if (shape.chunks > 1) input += ", " + std::to_string(shape.chunks) + " chunks";
    answer(input, "steps", [&] {
      std::vector<std::string> steps;
      for (const Step& step : anymesh::one_f_one_b(stage, shape))
        steps.push_back(word(step, shape.chunks));
      return steps;
    });
  }
}

}  // namespace

void one_f_one_b() {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches)
      all_stages({.stages = stages, .micro_batches = micro_batches});
    for (int chunks = 2; stages > 1 && chunks <= 3; ++chunks)
      for (int rounds = 1; rounds <= 3; ++rounds)
        all_stages({.stages = stages, .micro_batches = rounds * stages, .chunks = chunks});
  }
}

}  // namespace write_it
