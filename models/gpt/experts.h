#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/gpt/documents.h"
#include "models/gpt/mlp.h"

namespace anymesh {

// A mixture of experts in place of a layer's MLP (arXiv:2101.03961): a router sends each token to
// the K of E small gated MLPs that it scores highest, and adds what they return.
//
//   scores  = softmax(router x)                                        [t, E]
//   y       = sum over the K chosen e of p_e w2_e (act(w1_e x) * w3_e x)
//   p       = softmax over the K chosen logits; with --moe-router-pre-softmax the scores themselves
//
// No expert has a limit, so no token is dropped. Where experts have one score, that with the lower
// number is chosen. `y` is added over the K in the order of the choice. Routing thus depends on
// tokens and weights alone, and not on the mesh.
//
// Two losses keep the router in balance. They are not in the loss that is reported.
//
//   --moe-aux-loss-coeff   E sum_e f_e P_e: the part of the choices that fell on e, which has no
//                          gradient, and e's mean score, over the tokens of a micro-batch
//   --moe-z-loss-coeff     the mean of logsumexp(router x)^2 (arXiv:2202.08906)
//
// The weights of all experts lie in one tensor each, as DeepSpeed's AutoEP has them. Expert
// parallelism spreads them over ranks (token_exchange.h). Tensor parallelism cuts each expert as it
// cuts an MLP. With --expert-tensor-parallel-size 1 it does not: then a tp rank routes its own part
// of the sequence.
class Experts {
 public:
  Experts(ParamBuilder& params, const std::string& name, const GptConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden,
                        const LayerContext& context) const;  // [b, s, h] -> [b, s, h]

 private:
  struct Routes {
    torch::Tensor experts, weights;  // [t, K]
    torch::Tensor loss;              // of the router; undefined if both coefficients are 0
  };
  Routes route(const torch::Tensor& x) const;  // [t, h]
  torch::Tensor mix(const torch::Tensor& x, const Routes& routes) const;

  TensorParallel tp_;
  ExpertParallel ep_;
  int64_t count_, chosen_;  // E and K
  bool pre_softmax_, geglu_;
  double aux_loss_, z_loss_;
  torch::Tensor router_;        // [E, h]
  torch::Tensor w1_, w2_, w3_;  // [E/ep, f/t, h], [E/ep, h, f/t], [E/ep, f/t, h]
  std::optional<ParallelMlp> shared_;
  torch::Tensor shared_gate_;  // [1, h]; undefined unless --moe-shared-expert-gate
};

}  // namespace anymesh
