#pragma once

#include <torch/types.h>

#include <optional>

#include "framework/random/dropout.h"

namespace anymesh {

// What attention does besides softmax(q k^T / sqrt(d)) v, which is causal.
struct AttentionExtras {
  torch::Tensor cos,
      sin;  // [s, r/2]: turns elements i and i + r/2 of q and k by angles of their position; or undefined
  std::optional<torch::Tensor> bias;  // [1, n, s, s], added to the scores
  double dropout = 0;                 // of the weights
  DropoutContext context;
  uint32_t layer = 0;      // ... of the dropout's stream
  int64_t first_head = 0;  // of all heads
};

// Whether fused_attention() can: fp32 or bf16 in the CPU's memory, with heads of a multiple of 16
// elements.
bool can_fuse_attention(const torch::Tensor& qkv);

// Causal self-attention without a score in memory: qkv [b, s, k, n/k + 2, d], the queries, the key
// and the value of each of the k groups of heads, contiguous -> [b, s, n d]. As in FlashAttention
// (arXiv:2205.14135) blocks of queries meet all keys at a time, and backward makes the weights
// again. Products are of T, sums in fp32, the weights are rounded to T before they meet the values. bf16
// without units for it (block_gemm.h) is computed in fp32 and rounded once.
torch::Tensor fused_attention(const torch::Tensor& qkv, const AttentionExtras& extras);

}  // namespace anymesh
