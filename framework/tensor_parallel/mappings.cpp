#include "framework/tensor_parallel/mappings.h"

#include <torch/csrc/autograd/custom_function.h>

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

torch::Tensor summed(const torch::Tensor& x, const CommPtr& tp) {
  if (tp->size() == 1) return x;
  torch::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  tp->all_reduce(sum);
  return sum;
}

struct CopyTo : torch::autograd::Function<CopyTo> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, const CommPtr& tp) {
    ctx->saved_data["tp"] = c10::IValue::make_capsule(tp);
    return x.view_as(x);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto tp =
        c10::static_intrusive_pointer_cast<Communicator>(ctx->saved_data["tp"].toCapsule());
    return {summed(grads[0], tp), {}};
  }
};

struct ReduceFrom : torch::autograd::Function<ReduceFrom> {
  static torch::Tensor forward(AutogradContext*, const torch::Tensor& x, const CommPtr& tp) {
    return summed(x, tp);
  }
  static tensor_list backward(AutogradContext*, tensor_list grads) { return {grads[0], {}}; }
};

}  // namespace

torch::Tensor copy_to_tensor_parallel(const torch::Tensor& x, const CommPtr& tp) {
  return CopyTo::apply(x, tp);
}
torch::Tensor reduce_from_tensor_parallel(const torch::Tensor& x, const CommPtr& tp) {
  return ReduceFrom::apply(x, tp);
}

}  // namespace anymesh
