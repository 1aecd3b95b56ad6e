#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// What a build with CUDA (the preset `cuda`) has more than one without, and all that the rest of
// the framework sees of it: no header of CUDA's or NCCL's is included outside of this folder. A
// build without links absent.cpp, whose functions say so, instead of the others.

struct CudaDevices {
  int count = 0;        // that this process may use
  std::string missing;  // if there are none, why: "this build has no CUDA (...)"
};
CudaDevices cuda_devices();

struct CudaDevice {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // the same for two processes if they share it, whatever number it has for each
};
// REQUIRES: index < cuda_devices().count
CudaDevice cuda_device(int index);

// From here on this process computes there. Throws if the device cannot be used.
void use_cuda_device(int index);

// The ranks of `host`, with NCCL between their GPUs: each its own, the one that use_cuda_device()
// chose. Tensors of the CPU, barriers and roll calls go by `host`, as do NCCL's ids. A verb that a
// GPU has not done within `patience`, or that fails there, ends the process with a line that names
// group and verb: the host runs ahead of the GPU, and there may be nobody to throw at.
//
// Unlike MPI's, sums are folded in an order that NCCL chooses, by the verb, the size and the number
// of ranks; every rank holds the same bits after an all_reduce, but a reduce_scatter may have
// others. Sums of bf16 and fp16 tensors are rounded to that between ranks, unless `out` of a
// reduce_scatter is wider: then they are folded in its dtype.
CommPtr nccl_communicator(CommPtr host, std::chrono::seconds patience);

// The ranks of `host`, whose verbs also take tensors of a GPU, by way of pinned memory of the host:
// all that communicator.h says of sums holds, ranks may share a GPU, and it is slow.
CommPtr staged_communicator(CommPtr host);

// Reads bytes [offset, offset + out.size()) of what `t`, contiguous and of a GPU, holds once its
// current stream has done what it has to do now. For any thread, and several at once, beside what
// the GPU computes in the meantime: in a stream of its own, and through pinned memory, half of
// which arrives while the other half is copied on. Saves read so.
using HostReader = std::function<void(uint64_t offset, std::span<std::byte> out)>;
HostReader host_reader(const torch::Tensor& t);

}  // namespace anymesh
