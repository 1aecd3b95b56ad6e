#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/gpt/documents.h"
#include "models/gpt/mlp.h"
#include "models/gpt/router.h"

namespace anymesh {

// A mixture of experts in place of a layer's MLP (arXiv:2101.03961): a router sends each token to K
// of E small gated MLPs, and adds what they return.
//
//   y = sum over the K chosen e of p_e w2_e (act(w1_e x) * w3_e x)     experts and p: router.h
//
// No expert has a limit, so no token is dropped. `y` is added over the K in the order of the
// choice.
//
// The weights of all experts lie in one tensor each, as DeepSpeed's AutoEP has them. Expert
// parallelism spreads them over ranks (token_exchange.h). Tensor parallelism cuts each expert as it
// cuts an MLP. With --expert-tensor-parallel-size 1 it does not: then a tp rank routes its own part
// of the sequence.
class Experts {
 public:
  Experts(const StageParams& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden,
                        const LayerContext& context) const;  // [b, s, h] -> [b, s, h]

  const Router& router() const { return router_; }

 private:
  torch::Tensor mix(const torch::Tensor& x, const Router::Routes& routes) const;

  TensorParallel tp_;
  ExpertParallel ep_;
  int64_t count_;  // E
  bool geglu_;
  Router router_;
  torch::Tensor w1_, w2_, w3_;  // [E/ep, f/t, h], [E/ep, h, f/t], [E/ep, f/t, h]
  std::optional<ParallelMlp> shared_;
  torch::Tensor shared_gate_;  // [1, h]; undefined unless --moe-shared-expert-gate
};

}  // namespace anymesh
