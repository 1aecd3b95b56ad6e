#pragma once

#include <string>

#include "models/gpt/documents.h"
#include "models/gpt/stage_params.h"

namespace anymesh {

// Sends each token to the K of E experts that it scores highest:
//
//   z       = router x                                                     [t, E]
//   s       = softmax(z); with --moe-router-score-function sigmoid, sigmoid(z)
//   chosen  = the K greatest s + bias; where two are equal, the expert with the lower number
//   p       softmax over the K chosen z; with --moe-router-pre-softmax their s
//           sigmoid: their s / (sum + 1e-20), or s itself if K is 1
//
// times --moe-router-topk-scaling-factor. Routing thus depends on tokens and weights alone, and not
// on the mesh.
//
// Three means keep the experts in balance. The two losses are not in the loss that is reported.
//
//   --moe-aux-loss-coeff   E sum_e f_e P_e: the part of the choices that fell on e, which has no
//                          gradient and is counted without the bias, and e's mean score (sigmoid:
//                          of scores divided by their sum), over the tokens of a micro-batch
//   --moe-z-loss-coeff     the mean of logsumexp(z)^2 (arXiv:2202.08906)
//   --moe-router-enable-expert-bias
//                          after each step the bias of an expert with fewer tokens than the mean
//                          grows by --moe-router-bias-update-rate, that of others falls
//                          (arXiv:2408.15664)
class Router {
 public:
  // With `own_tokens`, each tp rank routes other tokens; else all route the same ones.
  Router(const StageParams& params, const std::string& name, const GptConfig& config,
         bool own_tokens);

  struct Routes {
    torch::Tensor experts, weights;  // [t, K]
    torch::Tensor loss;              // this rank's part; undefined if both coefficients are 0
  };
  Routes route(const torch::Tensor& x, const LayerContext& context) const;  // [t, h]

  // The tokens of this rank that went to each expert in this step, [E] in float64; undefined unless
  // there is a bias, or --moe-per-layer-logging. end_step() takes the sum over all ranks for the
  // bias, unless the step was skipped, and begins anew.
  const torch::Tensor& counts() const { return counts_; }
  void end_step(const torch::Tensor& counts, bool skipped) const;

 private:
  torch::Tensor weigh(const torch::Tensor& z, const torch::Tensor& scores,
                      const torch::Tensor& experts) const;
  torch::Tensor loss(const torch::Tensor& z, const torch::Tensor& scores,
                     const torch::Tensor& experts) const;
  torch::Tensor tokens_of(const torch::Tensor& experts) const;

  TensorParallel tp_;
  bool own_tokens_, sigmoid_, pre_softmax_;
  int64_t count_, chosen_;  // E and K
  double scale_, aux_loss_, z_loss_, bias_rate_;
  torch::Tensor weight_;  // [E, h]
  torch::Tensor bias_;    // [E], a buffer; undefined without --moe-router-enable-expert-bias
  torch::Tensor counts_;
};

}  // namespace anymesh
