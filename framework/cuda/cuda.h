#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// The parts that only a build with CUDA (the preset `cuda`) has. The rest of the framework sees
// nothing else of CUDA: no CUDA or NCCL header is included outside this folder. A build without
// CUDA links absent.cpp instead, with functions that say so.

struct CudaDevices {
  int count = 0;        // GPUs that this process may use
  std::string missing;  // the reason if there are none: "this build has no CUDA (...)"
};
CudaDevices cuda_devices();

struct CudaDevice {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // the same in two processes that share it, whatever its number in each
};
// REQUIRES: index < cuda_devices().count
CudaDevice cuda_device(int index);

// Makes this process compute on the device. With `deterministic`, operators add in a fixed order,
// or throw if they have none. Throws if the device cannot be used.
void use_cuda_device(int index, bool deterministic = false);

// Returns the most bytes that tensors have occupied on this process's device; 0 without one.
int64_t cuda_peak_memory();

// Returns the ranks of `host`, with NCCL between their GPUs. Each rank has its own GPU, chosen by
// use_cuda_device(). CPU tensors, barriers, roll calls and NCCL's ids go through `host`. A verb
// that fails on the GPU, or does not finish there within `patience`, ends the process with a line
// that names group and verb. It does not throw, because the host runs ahead of the GPU and there
// may be nobody to catch.
//
// Unlike MPI, NCCL chooses the order of a sum, by the verb, the size and the number of ranks. After
// an all_reduce every rank holds the same bits, but a reduce_scatter may have others. Sums of bf16
// and fp16 tensors are rounded to their dtype between ranks. If `out` of a reduce_scatter is wider,
// they are folded in the dtype of `out`.
CommPtr nccl_communicator(CommPtr host, std::chrono::seconds patience);

}  // namespace anymesh
