#pragma once

#include <chrono>
#include <string>

#include "framework/comm/job.h"
#include "framework/config/config.h"

namespace anymesh {

// This rank's device and its connection to the others, as --device and --distributed-backend
// resolve on this machine.
struct Placement {
  torch::Device device = torch::kCPU;
  CommPtr world;     // all ranks; its verbs take tensors on `device` and on the CPU
  std::string text;  // printed at the start: "cuda, NVIDIA H200, by nccl"; empty on the CPU
};

// Gives each rank the GPU with its number on the machine, among the GPUs that the process may use.
// With the mpi backend, further ranks share the GPUs, from the first one on. If one rank lacks
// something, all ranks throw. Collective over job.world().
Placement place(const Config& config, const Job& job);

}  // namespace anymesh
