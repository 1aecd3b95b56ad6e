#include "framework/pipeline/unit_runner.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct ForwardHolder : torch::CustomClassHolder {
  explicit ForwardHolder(UnitRunner::Forward f) : forward(std::move(f)) {}
  UnitRunner::Forward forward;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& hidden,
                               const UnitRunner::Forward& forward) {
    ctx->save_for_backward({hidden});
    ctx->saved_data["forward"] =
        c10::IValue::make_capsule(c10::make_intrusive<ForwardHolder>(forward));
    c10::NoGradGuard no_grad;
    return forward(hidden);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<ForwardHolder>(ctx->saved_data["forward"].toCapsule());
    const torch::Tensor hidden = ctx->get_saved_variables()[0].detach().requires_grad_();
    {
      at::AutoGradMode with_grad(true);
      const torch::Tensor output = holder->forward(hidden);
      torch::autograd::backward({output}, {grads[0]});
    }
    return {hidden.grad(), {}};
  }
};

}  // namespace

// If x requires no gradient, no earlier parameter is trained. A recomputed part would then get no
// gradient for its own parameters either.
torch::Tensor recomputed(const torch::Tensor& x, const UnitRunner::Forward& forward) {
  const bool keeps = x.defined() && x.requires_grad() && at::GradMode::is_enabled();
  return keeps ? Recomputed::apply(x, forward) : forward(x);
}

torch::Tensor UnitRunner::run(int unit, const torch::Tensor& hidden, const Forward& forward) const {
  if (observer_) observer_->before_forward(unit);
  torch::Tensor output = recompute_ ? recomputed(hidden, forward) : forward(hidden);
  if (observer_) {
    observer_->after_forward(unit);
    if (output.requires_grad()) {
      output.register_hook([observer = observer_, unit](const torch::Tensor& gradient) {
        observer->before_backward(unit);
        return gradient;
      });
    }
  }
  return output;
}

}  // namespace anymesh
