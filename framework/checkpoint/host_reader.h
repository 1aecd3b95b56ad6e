#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace anymesh {

// Reads bytes [offset, offset + out.size()) of `t`, a contiguous tensor of a device, as they are
// once its current stream has finished the work it has now. Any thread may call it, and several at
// once, while the device computes. It reads in a stream of its own and through two halves of pinned
// memory: one half arrives while the other is copied out. Saves use it.
using HostReader = std::function<void(uint64_t offset, std::span<std::byte> out)>;
HostReader host_reader(const torch::Tensor& t);

}  // namespace anymesh
