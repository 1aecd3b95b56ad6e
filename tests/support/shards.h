#pragma once

#include <algorithm>

#include "framework/comm/process_grid.h"
#include "framework/param_spec.h"

namespace anymesh {

// Returns this tp rank's shard of a whole tensor, vocabulary padding included.
inline torch::Tensor shard_of(const torch::Tensor& whole, const ParamSpec& spec,
                              const ProcessGrid& grid) {
  if (spec.experts) {
    const torch::Tensor own = whole.chunk(
        grid.topology.ep_size, 0)[static_cast<size_t>(grid.topology.ep_rank_of(grid.coord))];
    if (spec.split_dim < 0) return own;
    return own.chunk(grid.topology.tp_size, spec.split_dim)[static_cast<size_t>(grid.coord.tp)];
  }
  if (spec.split_dim < 0) return whole;
  if (spec.sub_params > 1) {
    std::vector<torch::Tensor> shards;
    for (const torch::Tensor& part : whole.chunk(spec.sub_params, spec.split_dim)) {
      shards.push_back(
          part.chunk(grid.topology.tp_size, spec.split_dim)[static_cast<size_t>(grid.coord.tp)]);
    }
    return torch::cat(shards, spec.split_dim);
  }
  const int64_t n = spec.tensor.size(spec.split_dim), begin = grid.coord.tp * n;
  torch::Tensor shard = torch::zeros(spec.tensor.sizes(), whole.options());
  const int64_t real = std::clamp<int64_t>(whole.size(spec.split_dim) - begin, 0, n);
  if (real > 0)
    shard.narrow(spec.split_dim, 0, real).copy_(whole.narrow(spec.split_dim, begin, real));
  return shard;
}

}  // namespace anymesh
