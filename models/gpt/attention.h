#pragma once

#include <c10/util/FunctionRef.h>

#include <string>

#include "framework/kernels/attention.h"
#include "models/gpt/documents.h"
#include "models/gpt/positions.h"
#include "models/gpt/stage_params.h"

namespace anymesh {

// The norms of queries and of keys. Undefined without --qk-layernorm:
//
//   of each head     weight [d], whole on every tp rank, which has the gradient of its own heads
//   of all heads     (--qk-layernorm-all-heads) weights [n d] and [k d], cut by tp. The mean of
//                    squares is that of all tp ranks' heads
struct HeadNorms {
  NormParams q, k;
  bool all_heads = false;
  TensorParallel tp = {};
};

// Causal self-attention. The n query heads are in k groups, each with one key head and one value
// head in common (arXiv:2305.13245); in GPT-2 k = n. Each tp rank holds k/t groups. The rows of the
// fused projection are in Megatron's classic order, [q, ..., q, key, value] per group, so that
// cutting rows cuts groups. The width of a head, d, need not be h/n.
class ParallelAttention {
 public:
  ParallelAttention(const StageParams& params, const std::string& name, int layer,
                    const GptConfig& config, const RelativePositions& positions);

  // Mixes positions between the two projections: qkv [b, s, k/t, n/k+2, d] -> [b, s, nd/t].
  // Training uses attend(). Generation passes one that keeps keys and values, and is made of
  // split_heads(), positions() and visible().
  using Mix = c10::function_ref<torch::Tensor(const ParallelAttention& attention,
                                              const torch::Tensor& qkv)>;
  torch::Tensor forward(const torch::Tensor& hidden, const LayerContext& context,
                        Mix mix = {}) const;  // [b, s, h] -> [b, s, h]

  const RelativePositions& positions() const { return positions_; }

  // Returns which keys, of positions [0, first + s), the queries [first, first + s) see: a bool
  // [s, first + s]. Undefined if that is all of them.
  torch::Tensor visible(int64_t first, int64_t s, torch::Device device) const;

 private:
  torch::Tensor normed(const torch::Tensor& qkv) const;
  torch::Tensor attend(const torch::Tensor& qkv, const LayerContext& context) const;
  // Uses LibTorch's operators for cases that the fused kernel does not take.
  torch::Tensor attend_unfused(const torch::Tensor& qkv, const LayerContext& context) const;
  // Returns what the scores need beside the causal mask: a bool [1 or b, 1, s, s], or a bias
  // [1 or b, n/t, s, s] that includes the mask.
  std::optional<torch::Tensor> mask_of(const LayerContext& context, int64_t s,
                                       torch::Device device) const;

  int64_t groups_, group_size_, first_head_, head_dim_;  // a group has group_size_ query heads
  int64_t window_;                                       // see GptConfig::window()
  uint32_t layer_;
  double dropout_;
  bool recomputes_;  // what lies between the projections
  RelativePositions positions_;
  Adapted<ColumnParallelLinear> query_key_value_;
  HeadNorms head_norms_;
  Adapted<RowParallelLinear> dense_;
};

}  // namespace anymesh
