// Parts of different sizes, one for each rank of a group, laid end to end in a tensor.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace anymesh {

// Returns where each rank's part starts, and the end of the last.
inline std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> starts{0};
  for (const int64_t count : counts) starts.push_back(starts.back() + count);
  return starts;
}

// Checks the arguments of Communicator::all_to_all.
inline void check_all_to_all(const torch::Tensor& out, const torch::Tensor& in,
                             const std::vector<int64_t>& receive, const std::vector<int64_t>& send,
                             int rank) {
  const auto own = static_cast<size_t>(rank);
  TORCH_INTERNAL_ASSERT(out.dtype() == in.dtype() && out.numel() == receive.back() &&
                        in.numel() == send.back() && receive.size() == send.size() &&
                        receive[own + 1] - receive[own] == send[own + 1] - send[own]);
}

}  // namespace anymesh
