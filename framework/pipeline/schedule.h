#pragma once

#include <compare>
#include <optional>
#include <vector>

namespace anymesh {

// The work of a pipeline's stages as data: there is no communication here. A stage has one run of
// consecutive layers, or several (chunks), each of which is a stage of its own: chunk c of stage s
// is the (c * stages + s)th part of the model.
enum class Op {
  Forward,
  Backward,  // makes the gradients of parameters too, unless the schedule has Weights
  Weights
};
struct Step {
  Op op;
  int micro_batch, chunk = 0;
  auto operator<=>(const Step&) const = default;
};
struct PipelineShape {
  int stages = 1, micro_batches = 1, chunks = 1;
};

// Returns the steps of a stage, in order, by 1F1B (PipeDream-Flush; arXiv:2104.04473, figure 4).
//
//   stage 0 of 4, 6 micro-batches:  F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5
//
// Warmup fills the pipeline, the steady phase alternates, cooldown drains it. A stage holds the
// activations of at most min(stages - stage, micro-batches) micro-batches. With one stage it is
// gradient accumulation: F0 B0 F1 B1 ...
//
// With several chunks it is the interleaved schedule of the same paper (section 2.2.2): as many
// micro-batches as there are stages go through a chunk before the next chunk follows. The bubble is
// as many times smaller as there are chunks, the messages are as many times more, and warmup keeps
// more activations.
// REQUIRES: stages divide the micro-batches if there are several chunks.
std::vector<Step> one_f_one_b(int stage, const PipelineShape& shape);

// The same with backwards in two halves (ZB-H1; arXiv:2401.10241, section 2.3). Backward makes the
// gradient that the stage before waits for. Weights makes those of the parameters. It is put off by
// as many micro-batches as there are stages before, and fills the time in which the stage would
// wait. No stage holds the tensors of more than min(stages, micro-batches) micro-batches.
//
//   stage 1 of 2, 4 micro-batches:  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3
//
// If all three take one slot, and there are at least as many micro-batches as stages, a stage waits
// stages - 1 slots; by one_f_one_b() it waits three times that.
// REQUIRES: one chunk.
std::vector<Step> zero_bubble(int stage, const PipelineShape& shape);

// The same without backward, of any number of micro-batches.
std::vector<Step> forwards(const PipelineShape& shape);

// The stage's part of one slot, in which every stage whose input is there does one step.
struct Slot {
  std::optional<Step> step;  // none: the stage waits
  std::optional<int> to;     // the stage that needs the step's result
  struct Arrival {
    int from;
    Step needed_by;
  };
  std::vector<Arrival> arrivals;  // results that other stages send this one at the end of the slot
};

// Returns the slots of a stage, of as many as all steps of all stages take. A result is there in
// the slot after that of its step. Throws std::logic_error if the stages wait for each other for ever.
std::vector<Slot> slots_of(int stage, const std::vector<std::vector<Step>>& steps_of_stages,
                           int chunks);

}  // namespace anymesh
