#include "models/gpt/router.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "framework/kernels/linear.h"

namespace anymesh {
namespace {

constexpr double kTiny = 1e-20;  // Megatron's, so that a sum is never 0

// Returns the K greatest of each row. Sorted, because topk() may choose any of equal scores.
torch::Tensor greatest(const torch::Tensor& rows, int64_t chosen) {
  return at::argsort(rows.detach(), /*stable=*/true, /*dim=*/-1, /*descending=*/true)
      .narrow(-1, 0, chosen);
}

}  // namespace

Router::Router(const StageParams& params, const std::string& name, const GptConfig& config,
               bool own_tokens)
    : tp_(params.tp()),
      own_tokens_(own_tokens),
      sigmoid_(config.moe_router_score_function == "sigmoid"),
      pre_softmax_(config.moe_router_pre_softmax),
      count_(config.num_experts),
      chosen_(config.moe_router_topk),
      scale_(config.moe_router_topk_scaling_factor),
      aux_loss_(config.moe_aux_loss_coeff),
      z_loss_(config.moe_z_loss_coeff),
      bias_rate_(config.moe_router_bias_update_rate),
      weight_(params[name + ".gate.weight"]),
      bias_(params[name + ".e_score_correction_bias"]) {
  if (config.moe_router_enable_expert_bias || config.moe_per_layer_logging)
    counts_ = at::zeros({count_}, weight_.options().dtype(torch::kDouble).requires_grad(false));
}

Router::Routes Router::route(const torch::Tensor& x, const LayerContext& context) const {
  const torch::Tensor logits = blocked_linear(x, weight_),
                      z = logits.to(at::toOpMathType(logits.scalar_type())),
                      scores = sigmoid_ ? at::sigmoid(z) : at::softmax(z, -1);  // [t, E]
  // A softmax keeps the order of z, but may round two of it to one.
  const torch::Tensor& ranked = sigmoid_ ? scores : z;
  const torch::Tensor unbiased = greatest(ranked, chosen_);
  Routes routes{bias_.defined() ? greatest(scores.detach() + bias_, chosen_) : unbiased, {}, {}};
  routes.weights = weigh(z, scores, routes.experts).to(x.scalar_type());
  if (aux_loss_ > 0 || z_loss_ > 0) routes.loss = loss(z, scores, unbiased);
  // Recomputation routes a second time, with gradients then.
  if (counts_.defined() && context.loss_scale > 0 && at::GradMode::is_enabled())
    counts_.add_(tokens_of(routes.experts));
  return routes;
}

torch::Tensor Router::weigh(const torch::Tensor& z, const torch::Tensor& scores,
                            const torch::Tensor& experts) const {
  const bool by_scores = sigmoid_ || pre_softmax_;
  const torch::Tensor best = (by_scores ? scores : z).gather(-1, experts);
  const torch::Tensor weights = !by_scores ? at::softmax(best, -1)
                                : sigmoid_ && chosen_ > 1
                                    ? best / (best.sum(-1, /*keepdim=*/true) + kTiny)
                                    : best;
  return scale_ == 1 ? weights : weights * scale_;
}

// The losses are means over the tokens of all tp ranks. Each rank has its part of them: that of its
// own tokens, or, where all route the same tokens and add their gradients, an equal share.
torch::Tensor Router::loss(const torch::Tensor& z, const torch::Tensor& scores,
                           const torch::Tensor& experts) const {
  const auto ranks = static_cast<double>(tp_.size()),
             tokens = static_cast<double>(z.size(0)) * (own_tokens_ ? ranks : 1),
             part = 1 / tokens / (own_tokens_ ? 1 : ranks);
  torch::Tensor loss = at::zeros({}, z.options());
  if (aux_loss_ > 0) {
    const torch::Tensor choices = tokens_of(experts).to(z.scalar_type());
    if (own_tokens_) tp_.group->all_reduce(choices);
    const torch::Tensor shares = sigmoid_ ? scores / (scores.sum(-1, true) + kTiny) : scores;
    loss = loss + aux_loss_ * static_cast<double>(count_) /
                      (tokens * static_cast<double>(chosen_)) * part *
                      (choices * shares.sum(0)).sum();
  }
  if (z_loss_ > 0) loss = loss + z_loss_ * part * at::logsumexp(z, -1).square().sum();
  return loss;
}

torch::Tensor Router::tokens_of(const torch::Tensor& experts) const {
  const torch::TensorOptions options = experts.options().dtype(torch::kDouble);
  return at::zeros({count_}, options)
      .index_add_(0, experts.flatten(), at::ones({experts.numel()}, options));
}

void Router::end_step(const torch::Tensor& counts, bool skipped) const {
  if (bias_.defined() && !skipped)
    bias_.add_(at::sign(counts.mean() - counts).to(bias_.scalar_type()), bias_rate_);
  counts_.zero_();
}

}  // namespace anymesh
