#pragma once

#include <chrono>
#include <string>

#include "framework/comm/job.h"
#include "framework/config/config.h"

namespace anymesh {

// Where this rank computes, and by what it talks to the others: what --device and
// --distributed-backend come to on this machine.
struct Placement {
  torch::Device device = torch::kCPU;
  CommPtr world;     // all ranks; its verbs take tensors of `device` and of the CPU
  std::string text;  // for the start: "cuda, NVIDIA H200, by nccl"; empty on the CPU
};

// A rank of a machine takes the GPU of its number among those that the process may use, or, by the
// mpi backend, shares one, from the first again where there are more ranks. Throws together with
// all ranks what one of them lacks. Collective over job.world().
Placement place(const Config& config, const Job& job);

}  // namespace anymesh
