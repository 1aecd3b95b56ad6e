// The costs of a mesh: memory, traffic and time of a training step, all from the flags.
//
//   for (MeshChoice& choice : legal_meshes(config, gpt, flags, machine.gpus))
//     MeshPlan plan = plan_of(choice, gpt, machine);
//
// Memory is gpt_memory_form.h's, traffic is gpt_comm_form.h's. docs/plan.md says how the time
// follows from them.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "framework/config/flags.h"
#include "models/gpt/gpt_memory_form.h"

namespace anymesh {

struct Machine {
  int gpus = 0, node = 8;                      // ranks, and how many of them share a node
  double memory = 0;                           // GiB of a rank
  double tflops = 0, efficiency = 0.6;         // peak, and the part of it that products reach
  double nvlink = 0, network = 0;              // GB/s of a rank, one way: in a node, between nodes
  double memory_bandwidth = 2000;              // GB/s
  double link_efficiency = 0.8, latency = 10;  // of all three rates; us of a collective
};

// A legal mesh.
struct MeshChoice {
  std::string name;  // "tp2-pp2-dp4-zero1-b1", and -ep4 -etp1 -sp -recompute where they are on
  Config config;
  StepShape step;
  KeptStates states;
};

// Returns the meshes that validate() accepts for so many ranks. A size that a flag gives stays.
// `refused` gets a message of one that it refuses.
std::vector<MeshChoice> legal_meshes(const Config& config, const GptConfig& gpt,
                                     const FlagTable& flags, int gpus, std::string& refused);

// Seconds of a step. All but the bubble and what follows it are of the slowest stage.
struct StepTime {
  double products = 0;   // with what recomputation repeats
  double gradients = 0;  // added to their sums
  double tp = 0, ep = 0, pp = 0, dp = 0;
  double bubble = 0;  // the stage waits for others
  double optimizer = 0;
  double sum() const { return products + gradients + tp + ep + pp + dp + bubble + optimizer; }
};

struct PlanStage {
  int first = 0, count = 0;  // pipeline stages that are alike
  CommForm traffic;          // of one rank, on average over dp
  MemoryForm memory;         // of the first of them, which holds the most micro-batches
};

struct MeshPlan {
  MeshChoice choice;
  std::vector<PlanStage> stages;
  int worst = 0;                         // the stage with the greatest memory
  std::map<std::string, int64_t> bytes;  // by group: payload of the busiest stage's rank in a step
  StepTime time;
  double model_flops = 0, mfu = 0, tokens_per_second = 0;
  bool fits = false;
};

MeshPlan plan_of(const MeshChoice& choice, const GptConfig& gpt, const Machine& machine);

// The part of a rank's memory that a plan uses. A GPU's allocator and libraries take the rest.
inline constexpr double kUsable = 0.9;

// Runs the trainer on `ranks` threads for some seconds, and returns the rates that it reaches.
Machine measured_machine(const std::string& trainer, int ranks);

}  // namespace anymesh
