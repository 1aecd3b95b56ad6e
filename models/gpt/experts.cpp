#include "models/gpt/experts.h"

#include <ATen/Functions.h>
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

Experts::Experts(const StageParams& params, const std::string& name, const GptConfig& config)
    : tp_(params.tp()),
      ep_(params.ep()),
      count_(config.num_experts),
      geglu_(config.geglu),
      router_(params, name + ".router", config, /*own_tokens=*/params.ep().whole),
      w1_(params[name + ".experts.w1"]),
      w2_(params[name + ".experts.w2"]),
      w3_(params[name + ".experts.w3"]),
      shared_gate_(params[name + ".shared_experts_gate.weight"]) {
  if (config.moe_shared_expert_intermediate_size > 0)
    shared_.emplace(params, name + ".shared_experts", config);
}

torch::Tensor Experts::forward(const torch::Tensor& hidden, const LayerContext& context) const {
  // The tp ranks route the same tokens, or each its own part.
  const torch::Tensor here = ep_.whole ? hidden : enter_tensor_parallel(hidden, tp_);  // [b, s, h]
  const torch::Tensor x = here.flatten(0, 1);                                          // [t, h]
  const Router::Routes routes = router_.route(x, context);
  torch::Tensor y = mix(x, routes).view_as(here);
  if (routes.loss.defined() && context.loss_scale > 0)
    y = BesideLoss::apply(y, routes.loss, context.loss_scale);
  if (!ep_.whole) y = leave_tensor_parallel(y, tp_);
  if (!shared_) return y;
  torch::Tensor shared = shared_->forward(hidden, context.dropout);
  if (shared_gate_.defined()) shared = shared * at::sigmoid(blocked_linear(hidden, shared_gate_));
  return y + shared;
}

torch::Tensor Experts::mix(const torch::Tensor& x, const Router::Routes& routes) const {
  const TokenExchange exchange(routes.experts, count_, ep_);
  const torch::Tensor both = grouped_linear(exchange.send(x), {w1_, w3_}, exchange.groups()),
                      inner = geglu_ ? geglu(both) : swiglu(both);  // [r, 2f/t] -> [r, f/t]
  return exchange.bring_back(grouped_linear(inner, {w2_}, exchange.groups()), routes.weights);
}

}  // namespace anymesh
