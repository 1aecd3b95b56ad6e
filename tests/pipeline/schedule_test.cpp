#include "framework/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "framework/format/layout.h"

namespace anymesh {
namespace {

std::string text_of(const std::vector<Step>& steps) {
  std::string text;
  for (const auto& [op, micro_batch, chunk] : steps) {
    text += "FBW"[static_cast<int>(op)];
    text += std::to_string(micro_batch) + (chunk > 0 ? "'" : "") + ' ';
  }
  return text;
}

using Schedule = std::vector<Step>(int stage, const PipelineShape& shape);

std::vector<std::vector<Step>> steps_of(const PipelineShape& shape,
                                        Schedule* schedule = one_f_one_b) {
  std::vector<std::vector<Step>> steps;
  for (int stage = 0; stage < shape.stages; ++stage) steps.push_back(schedule(stage, shape));
  return steps;
}

template <class Check>
void for_each_shape(const Check& check) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= (stages == 1 ? 1 : 4); ++chunks)
      for (int n = 1; n <= 18; ++n)
        if (chunks == 1 || n % stages == 0) check(PipelineShape{stages, n, chunks});
}

TEST(OneFOneB, IsTheFigure) {
  EXPECT_EQ(text_of(one_f_one_b(0, {.stages = 4, .micro_batches = 6})),
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5 ");
}

// Figure 4 of the paper, its last device: the second chunk follows after four micro-batches.
TEST(OneFOneB, IsInterleaved) {
  EXPECT_EQ(text_of(one_f_one_b(3, {.stages = 4, .micro_batches = 4, .chunks = 2})),
            "F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' B0 B1 B2 B3 ");
}

TEST(OneFOneB, EveryMicroBatchOnceAndFewInFlight) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::vector<int> forward(4), backward(4);
      int in_flight = 0, peak = 0;
      for (const auto& [op, micro_batch, chunk] : one_f_one_b(stage, shape)) {
        auto& next = (op == Op::Forward ? forward : backward)[static_cast<size_t>(chunk)];
        EXPECT_EQ(micro_batch, next++);  // a chunk adds gradients in the order of micro-batches
        in_flight += op == Op::Forward ? 1 : -1;
        ASSERT_GE(in_flight, 0);
        peak = std::max(peak, in_flight);
      }
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        EXPECT_EQ(forward[static_cast<size_t>(chunk)], shape.micro_batches);
        EXPECT_EQ(backward[static_cast<size_t>(chunk)], shape.micro_batches);
      }
      const int later = shape.stages - stage - 1;
      const int most = shape.chunks == 1 ? later : 2 * later + (shape.chunks - 1) * shape.stages;
      EXPECT_EQ(peak, std::min(most + 1, shape.micro_batches * shape.chunks));
    }
  });
}

TEST(ZeroBubble, PutsWeightsOffByTheStagesBefore) {
  EXPECT_EQ(text_of(zero_bubble(0, {.stages = 4, .micro_batches = 5})),
            "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4 ");
  EXPECT_EQ(text_of(zero_bubble(3, {.stages = 4, .micro_batches = 5})),
            "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 W2 W3 W4 ");
}

// Without Weights it is 1F1B, and no more micro-batches are held than 1F1B's first stage holds.
TEST(ZeroBubble, IsOneFOneBWithFewInFlight) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; shape.chunks == 1 && stage < shape.stages; ++stage) {
      std::vector<Step> others;
      int backward = 0, weights = 0, in_flight = 0, peak = 0;
      for (const Step& step : zero_bubble(stage, shape)) {
        if (step.op == Op::Weights) {
          EXPECT_EQ(step.micro_batch, weights++);
          ASSERT_LE(weights, backward);
        } else {
          others.push_back(step);
          backward += step.op == Op::Backward;
        }
        in_flight += step.op == Op::Forward ? 1 : step.op == Op::Weights ? -1 : 0;
        peak = std::max(peak, in_flight);
      }
      EXPECT_EQ(others, one_f_one_b(stage, shape));
      EXPECT_EQ(in_flight, 0);
      EXPECT_EQ(peak, std::min(shape.stages, shape.micro_batches));
    }
  });
}

// A stage waits stages - 1 slots if there are enough micro-batches. 1F1B's backward takes two.
TEST(Slots, OfZeroBubbleHaveAThirdOfTheBubble) {
  for_each_shape([](const PipelineShape& shape) {
    if (shape.chunks > 1) return;
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::vector<Slot> slots = slots_of(stage, steps_of(shape, zero_bubble), 1);
      const int fill = std::min(shape.stages, shape.micro_batches);
      EXPECT_EQ(slots.size(),
                static_cast<size_t>(3 * shape.micro_batches + 2 * shape.stages - 1 - fill));
    }
  });
}

// The bubble: a stage waits (stages - 1) forwards and backwards of one chunk, 1 / chunks of those
// of its layers (arXiv:2104.04473, sections 2.2.1 and 2.2.2).
TEST(Slots, HaveTheBubbleOfTheClosedForm) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::vector<Slot> slots = slots_of(stage, steps_of(shape), shape.chunks);
      int waits = 0;
      for (const Slot& slot : slots) waits += !slot.step;
      EXPECT_EQ(waits, 2 * (shape.stages - 1));
      EXPECT_EQ(slots.size(), 2 * static_cast<size_t>(shape.micro_batches * shape.chunks) +
                                  2 * static_cast<size_t>(shape.stages - 1));
    }
  });
}

// Each message is received in the slot in which it is sent, before the step that needs it, and a
// stage sends every other one at most one in a slot, so that the order tells them apart.
void expect_messages_in_time(Schedule* schedule, int most_chunks) {
  for_each_shape([&](const PipelineShape& shape) {
    if (shape.chunks > most_chunks) return;
    std::vector<std::vector<Slot>> all;
    for (int stage = 0; stage < shape.stages; ++stage)
      all.push_back(slots_of(stage, steps_of(shape, schedule), shape.chunks));
    size_t sent = 0, received = 0, needed = 0;
    for (size_t stage = 0; stage < all.size(); ++stage) {
      std::set<Step> here;
      for (size_t at = 0; at < all[stage].size(); ++at) {
        const Slot& slot = all[stage][at];
        sent += slot.to.has_value();
        if (slot.step) needed += here.erase(*slot.step);
        for (const auto& [from, needed_by] : slot.arrivals) {
          EXPECT_EQ(all[static_cast<size_t>(from)][at].to, static_cast<int>(stage));
          EXPECT_TRUE(here.insert(needed_by).second);
          ++received;
        }
      }
      EXPECT_TRUE(here.empty());
    }
    const auto messages = static_cast<size_t>(2 * shape.micro_batches) *
                          static_cast<size_t>(shape.stages * shape.chunks - 1);
    EXPECT_EQ(sent, messages);
    EXPECT_EQ(received, messages);
    EXPECT_EQ(needed, messages);
  });
}

TEST(Slots, EveryMessageIsReceivedOnceInTime) {
  expect_messages_in_time(one_f_one_b, 4);
  expect_messages_in_time(zero_bubble, 1);
}

TEST(Slots, StagesThatWaitForEachOtherAreRefused) {
  const Step forward{Op::Forward, 0}, backward{Op::Backward, 0};
  EXPECT_THROW(slots_of(0, {{backward, forward}, {forward, backward}}, 1), std::logic_error);
}

TEST(LayersOfStage, CoverAllLayersEvenly) {
  for (int layers = 1; layers <= 13; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      int next = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const LayerRange range = layers_of_stage(layers, stages, stage);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, layers / stages);
        EXPECT_LE(range.end - range.begin, (layers + stages - 1) / stages);
        next = range.end;
      }
      EXPECT_EQ(next, layers);
    }
  }
}

}  // namespace
}  // namespace anymesh
