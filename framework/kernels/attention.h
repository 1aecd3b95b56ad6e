#pragma once

#include <torch/types.h>

#include <optional>

#include "framework/kernels/dropout.h"

namespace anymesh {

// The options of attention, beyond a causal softmax(q k^T / sqrt(d)) v.
struct AttentionExtras {
  torch::Tensor cos,
      sin;  // [s, r/2]: rotates elements i and i + r/2 of q and k by their position; or undefined
  std::optional<torch::Tensor> bias;  // [1, n, s, s], added to the scores
  int64_t window = 0;                 // keys that a query sees, the last its own; 0 = all
  double dropout = 0;                 // probability, for the weights
  DropoutContext context;
  // int64 [b, s], contiguous, for samples of several documents; or undefined.
  torch::Tensor positions;   // rows of cos and sin; else 0 to s - 1
  torch::Tensor first_keys;  // the first key that each query sees; else 0
  uint32_t layer = 0;        // the layer in the dropout's stream
  int64_t first_head = 0;    // this rank's first among all heads
};

// Whether fused_attention() takes `qkv`: fp32 or bf16 in the CPU's memory, with heads of a multiple
// of 16 elements.
bool can_fuse_attention(const torch::Tensor& qkv);

// Computes causal self-attention without storing scores: qkv [b, s, k, n/k + 2, d], contiguous ->
// [b, s, n d]. Each of the k groups of heads has its queries, a key and a value. As in
// FlashAttention (arXiv:2205.14135), one block of queries is processed at a time, here with all
// keys at once, and backward recomputes the weights. Factors have dtype T and sums are fp32. The
// weights are rounded to T before they multiply the values. On a CPU without units for bf16
// (block_gemm.h), bf16 is computed in fp32 and rounded once.
torch::Tensor fused_attention(const torch::Tensor& qkv, const AttentionExtras& extras);

}  // namespace anymesh
