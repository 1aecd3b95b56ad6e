#include "models/gpt/experts.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "framework/expert_parallel/token_exchange.h"
#include "framework/kernels/activation.h"
#include "framework/kernels/grouped_linear.h"
#include "framework/kernels/linear.h"
#include "framework/tensor_parallel/mappings.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Returns y. Its backward also begins that of `loss`, with the gradient `scale`.
struct BesideLoss : torch::autograd::Function<BesideLoss> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& y,
                               const torch::Tensor& loss, double scale) {
    ctx->saved_data["scale"] = scale;
    ctx->save_for_backward({loss});
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {grads[0],
            at::full_like(ctx->get_saved_variables()[0], ctx->saved_data["scale"].toDouble()),
            {}};
  }
};

}  // namespace

Experts::Experts(ParamBuilder& params, const std::string& name, const GptConfig& config)
    : tp_(params.tp()),
      ep_(params.ep),
      count_(config.num_experts),
      chosen_(config.moe_router_topk),
      pre_softmax_(config.moe_router_pre_softmax),
      geglu_(config.geglu),
      aux_loss_(config.moe_aux_loss_coeff),
      z_loss_(config.moe_z_loss_coeff) {
  const int64_t h = config.hidden_size, f = config.moe_ffn_size();
  const Init in = Init::normal(config.init_method_std), out = Init::normal(config.residual_std());
  router_ =
      params.add({.name = name + ".router.gate.weight", .shape = {count_, h}, .tp_sum = true}, in);
  const auto add = [&](const char* which, std::vector<int64_t> shape, int split_dim, Init init) {
    return params.add({.name = name + ".experts." + which,
                       .shape = std::move(shape),
                       .split_dim = split_dim,
                       .experts = true},
                      init);
  };
  w1_ = add("w1", {count_, f, h}, 1, in);
  w2_ = add("w2", {count_, h, f}, 2, out);
  w3_ = add("w3", {count_, f, h}, 1, in);
  if (config.moe_shared_expert_intermediate_size == 0) return;
  shared_.emplace(params, name + ".shared_experts", config,
                  config.moe_shared_expert_intermediate_size);
  if (config.moe_shared_expert_gate)
    shared_gate_ = params.add(
        {.name = name + ".shared_experts_gate.weight", .shape = {1, h}, .tp_sum = tp_.sequence},
        in);
}

torch::Tensor Experts::forward(const torch::Tensor& hidden, const LayerContext& context) const {
  // The tp ranks route the same tokens, or each its own part.
  const torch::Tensor here = ep_.whole ? hidden : enter_tensor_parallel(hidden, tp_);  // [b, s, h]
  const torch::Tensor x = here.flatten(0, 1);                                          // [t, h]
  const Routes routes = route(x);
  torch::Tensor y = mix(x, routes).view_as(here);
  if (routes.loss.defined() && context.loss_scale > 0)
    y = BesideLoss::apply(y, routes.loss, context.loss_scale);
  if (!ep_.whole) y = leave_tensor_parallel(y, tp_);
  if (!shared_) return y;
  torch::Tensor shared = shared_->forward(hidden);
  if (shared_gate_.defined()) shared = shared * at::sigmoid(blocked_linear(hidden, shared_gate_));
  return y + shared;
}

Experts::Routes Experts::route(const torch::Tensor& x) const {
  const torch::Tensor logits = blocked_linear(x, router_);  // [t, E]
  const torch::Tensor wide = logits.to(at::toOpMathType(logits.scalar_type())),
                      scores = at::softmax(wide, -1);
  Routes routes;
  // Sorted, because topk() may choose any of equal scores.
  routes.experts = at::argsort(wide.detach(), /*stable=*/true, /*dim=*/-1, /*descending=*/true)
                       .narrow(-1, 0, chosen_);
  const torch::Tensor best = (pre_softmax_ ? scores : wide).gather(-1, routes.experts);
  routes.weights = (pre_softmax_ ? best : at::softmax(best, -1)).to(x.scalar_type());
  // The losses are means over the tokens of all tp ranks. Each has its part of them: of its own
  // tokens, or the same as the others, whose gradients of the router are added.
  const auto ranks = static_cast<double>(tp_.size()),
             tokens = static_cast<double>(x.size(0)) * (ep_.whole ? ranks : 1),
             part = 1 / tokens / (ep_.whole ? 1 : ranks);
  if (aux_loss_ > 0) {
    torch::Tensor choices = at::zeros({count_}, scores.options())
                                .index_add_(0, routes.experts.flatten(),
                                            at::ones({routes.experts.numel()}, scores.options()));
    if (ep_.whole) tp_.group->all_reduce(choices);
    routes.loss = aux_loss_ * static_cast<double>(count_) /
                  (tokens * static_cast<double>(chosen_)) * part * (choices * scores.sum(0)).sum();
  }
  if (z_loss_ > 0) {
    const torch::Tensor z = z_loss_ * part * at::logsumexp(wide, -1).square().sum();
    routes.loss = routes.loss.defined() ? routes.loss + z : z;
  }
  return routes;
}

torch::Tensor Experts::mix(const torch::Tensor& x, const Routes& routes) const {
  const TokenExchange exchange(routes.experts, count_, ep_);
  const torch::Tensor both = grouped_linear(exchange.send(x), {w1_, w3_}, exchange.counts()),
                      inner = geglu_ ? geglu(both) : swiglu(both);  // [r, 2f/t] -> [r, f/t]
  return exchange.bring_back(grouped_linear(inner, {w2_}, exchange.counts()), routes.weights);
}

}  // namespace anymesh
