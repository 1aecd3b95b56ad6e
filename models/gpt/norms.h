#pragma once

#include <string>

#include "framework/comm/tensor_parallel.h"
#include "framework/kernels/norm.h"
#include "framework/param_spec.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Makes the parameters of a LayerNorm of the hidden state, or of one without mean and bias with
// --normalization rmsnorm. They are whole on every tp rank.
NormParams make_norm(ParamBuilder& params, const std::string& name, const GptConfig& config);

// The norms of queries and of keys. They are made with --qk-layernorm alone:
//
//   of each head     weight [d], whole on every tp rank, which has the gradient of its own heads
//   of all heads     (--qk-layernorm-all-heads) weights [n d] and [k d], cut by tp. The mean of
//                    squares is that of all tp ranks' heads
struct HeadNorms {
  NormParams q, k;
  bool all_heads = false;
  TensorParallel tp = {};
};
HeadNorms make_head_norms(ParamBuilder& params, const std::string& name, const GptConfig& config);

// Normalizes heads of any number, q and k [b, s, ..., d]. REQUIRES: the norms are made.
struct QueriesAndKeys {
  torch::Tensor q, k;
};
QueriesAndKeys normed_heads(const QueriesAndKeys& heads, const HeadNorms& norms);

}  // namespace anymesh
