#include "models/gpt/experts.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "framework/kernels/activation.h"
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
    return params.add(
        {.name = name + ".experts." + which, .shape = std::move(shape), .split_dim = split_dim},
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
  const torch::Tensor whole = enter_tensor_parallel(hidden, tp_);  // [b, s, h]
  const torch::Tensor x = whole.flatten(0, 1);                     // [t, h]
  const Routes routes = route(x);
  torch::Tensor y = mix(x, routes).view_as(whole);
  // Each tp rank has this loss, and their gradients of the router are added.
  if (routes.loss.defined() && context.loss_scale > 0)
    y = BesideLoss::apply(y, routes.loss, context.loss_scale / tp_.size());
  y = leave_tensor_parallel(y, tp_);
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
  if (aux_loss_ > 0) {
    const torch::Tensor choices =
        at::zeros({count_}, scores.options())
            .index_add_(0, routes.experts.flatten(),
                        at::ones({routes.experts.numel()}, scores.options()));
    routes.loss = aux_loss_ * static_cast<double>(count_) /
                  static_cast<double>(routes.experts.numel()) * (choices * scores.mean(0)).sum();
  }
  if (z_loss_ > 0) {
    const torch::Tensor z = z_loss_ * at::logsumexp(wide, -1).square().mean();
    routes.loss = routes.loss.defined() ? routes.loss + z : z;
  }
  return routes;
}

// Works through the experts one after the other, each with the rows of its tokens.
torch::Tensor Experts::mix(const torch::Tensor& x, const Routes& routes) const {
  const torch::Tensor choices = routes.experts.flatten(),  // [t K]
      order = at::argsort(choices, /*stable=*/true, /*dim=*/0, /*descending=*/false),
                      rows = x.index_select(0, order.floor_divide(chosen_)),  // by expert
      weights = routes.weights.flatten().index_select(0, order).unsqueeze(1),
                      counts = at::bincount(choices, {}, count_).cpu();
  const auto w1 = w1_.unbind(0), w2 = w2_.unbind(0), w3 = w3_.unbind(0);
  std::vector<torch::Tensor> outputs;
  int64_t first = 0;
  for (int64_t e = 0; e < count_; ++e) {
    const auto i = static_cast<size_t>(e);
    const int64_t n = counts.const_data_ptr<int64_t>()[e];
    if (n == 0) continue;
    const torch::Tensor mine = rows.narrow(0, first, n),
                        both = at::cat({blocked_linear(mine, w1[i]), blocked_linear(mine, w3[i])},
                                       -1),  // [n, 2f/t]
        inner = (geglu_ ? geglu(both) : swiglu(both)) * weights.narrow(0, first, n);
    outputs.push_back(blocked_linear(inner, w2[i]));
    first += n;
  }
  const torch::Tensor places = at::empty_like(order).scatter_(
      0, order, at::arange(order.numel(), order.options()));  // of each choice in the order
  return at::cat(outputs).index_select(0, places).view({x.size(0), chosen_, x.size(1)}).sum(1);
}

}  // namespace anymesh
