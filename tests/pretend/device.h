// A device that exists only in memory, with the rules of a GPU, for tests of the code around
// devices. It is LibTorch's PrivateUse1.
//
// Operators run at once, on the CPU. Yet they may only touch what a GPU would let them:
//
//   memory    host code that reads or writes the device's memory through a pointer crashes, since
//             its pages have no access outside operators
//   streams   an operator that touches memory which another stream may still be writing, or
//             reading, throws. So does freeing memory that another stream may still use. The order
//             comes from events and waits alone (happens-before, as a race detector has it), so a
//             missing wait is found in every run, whatever the timing.
//   pinned    memory that a copy may still be writing cannot be read before a wait
//   waits     every time the host waits for the device is counted
#pragma once

#include <c10/core/Stream.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace anymesh::pretend {

// Call this once, before the first tensor of the device is made.
void install();

// Runs work() in a stream, as one operator that reads and writes these tensors: what a transport
// does beside the computation. Throws where the order is missing.
void in_stream(const c10::Stream& stream, const std::vector<torch::Tensor>& reads,
               const std::vector<torch::Tensor>& writes, const std::function<void()>& work);

// Times that the host has waited for the device: blocking copies, items, events, streams.
int64_t waits();
// Bytes of the device's memory that tensors hold.
int64_t bytes();

}  // namespace anymesh::pretend
