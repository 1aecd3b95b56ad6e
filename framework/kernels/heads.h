#pragma once

#include <torch/types.h>

namespace anymesh {

struct Heads {
  torch::Tensor q, k, v;  // [b, n, s, d], [b, k, s, d] x 2
};

// Turns elements i and i + r/2 of queries and keys by their position (arXiv:2104.09864).
struct Rotation {
  torch::Tensor cos, sin;   // [s, r/2], in the heads' dtype; undefined: nothing is turned
  torch::Tensor positions;  // rows of cos and sin, int64 [b, s]; undefined: 0 to s - 1
};

// Returns x [b, n, s, d], turned.
torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation);

// Cuts the fused projection [b, s, k, n/k + 2, d] into heads, and turns queries and keys. They are
// views where they can be. On a GPU one kernel does the rest, and one puts the three gradients
// together; elsewhere LibTorch's operators do.
Heads split_heads(const torch::Tensor& projected, const Rotation& rotation);

}  // namespace anymesh
