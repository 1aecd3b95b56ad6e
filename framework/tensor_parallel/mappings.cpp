#include "framework/tensor_parallel/mappings.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <vector>

#include "framework/kernels/linear.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

torch::Tensor same(const torch::Tensor& x, const CommPtr&) { return x; }

torch::Tensor reduced(const torch::Tensor& x, const CommPtr& tp) {
  if (tp->size() == 1) return x;
  torch::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  tp->all_reduce(sum);
  return sum;
}

using Wait = SharedInput::Wait;

// The gather puts the ranks in dim 0, but the sequence is dim 1. With more than one sample this
// moves data, else it is a view.
Wait start_gather(const torch::Tensor& x, const CommPtr& tp) {
  const torch::Tensor mine = x.contiguous(),
                      parts =
                          torch::empty({tp->size(), x.size(0), x.size(1), x.size(2)}, x.options());
  return [mine, parts, pending = std::shared_ptr<Pending>(tp->start_all_gather(parts, mine))] {
    pending->wait();
    return parts.transpose(0, 1).flatten(1, 2);  // [b, s, h]
  };
}

Wait start_reduce_scatter(const torch::Tensor& x, const CommPtr& tp) {
  const torch::Tensor parts =
      x.unflatten(1, {tp->size(), -1}).transpose(0, 1).contiguous();  // [t, b, s/t, h]
  const torch::Tensor sum = torch::empty_like(parts[0]);
  const std::vector<int64_t> counts(static_cast<size_t>(tp->size()), sum.numel());
  return [parts, sum,
          pending = std::shared_ptr<Pending>(tp->start_reduce_scatter(sum, parts, counts))] {
    if (pending) pending->wait();
    return sum;
  };
}

torch::Tensor gathered(const torch::Tensor& x, const CommPtr& tp) {
  return tp->size() == 1 ? x : start_gather(x, tp)();
}

torch::Tensor reduce_scattered(const torch::Tensor& x, const CommPtr& tp) {
  return tp->size() == 1 ? x : start_reduce_scatter(x, tp)();
}

class Entering final : public SharedInput {
 public:
  explicit Entering(const TensorParallel& tp) : tp_(tp) {}

  Wait start_whole(const torch::Tensor& x) const override {
    if (tp_.sequence) return start_gather(x, tp_.group);
    return [x] { return x; };
  }
  Wait start_gradient(const torch::Tensor& dx) const override {
    if (tp_.sequence) return start_reduce_scatter(dx, tp_.group);
    return [dx, pending = std::shared_ptr<Pending>(tp_.group->start_all_reduce(dx))] {
      if (pending) pending->wait();
      return dx;
    };
  }

 private:
  TensorParallel tp_;
};

// The parts [t, ..] that the ranks have for this one, added as a binary tree.
torch::Tensor tree_scattered(const torch::Tensor& parts, const CommPtr& tp) {
  const torch::Tensor mine = torch::empty_like(parts);
  const std::vector<int64_t> counts(static_cast<size_t>(tp->size()), parts[0].numel());
  tp->all_to_all(mine, parts, counts, counts);
  return tree_sum(mine);
}

// A linear map over the group for forward, and its transpose for backward.
using Map = torch::Tensor (*)(const torch::Tensor&, const CommPtr&);
template <Map kForward, Map kBackward>
struct Mapping : torch::autograd::Function<Mapping<kForward, kBackward>> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, const CommPtr& tp) {
    ctx->saved_data["tp"] = c10::IValue::make_capsule(tp);
    return kForward(x, tp);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto tp =
        c10::static_intrusive_pointer_cast<Communicator>(ctx->saved_data["tp"].toCapsule());
    return {kBackward(grads[0], tp), {}};
  }
};

}  // namespace

torch::Tensor tree_sum(const torch::Tensor& parts) {
  for (int64_t step = 1; step < parts.size(0); step *= 2)
    for (int64_t i = 0; i + step < parts.size(0); i += 2 * step) parts[i].add_(parts[i + step]);
  return parts[0];
}

torch::Tensor gather_sequence(const torch::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? gathered(x, tp.group) : x;
}

torch::Tensor tree_leave(const torch::Tensor& x, torch::Dtype dtype, const TensorParallel& tp) {
  const int64_t t = tp.size();
  if (t == 1) return x.to(dtype);
  if (tp.sequence)
    return tree_scattered(x.unflatten(1, {t, -1}).transpose(0, 1).contiguous(), tp.group).to(dtype);
  const int64_t more = (t - x.numel() % t) % t;
  const torch::Tensor flat = more == 0 ? x.flatten() : at::constant_pad_nd(x.flatten(), {0, more}),
                      part = tree_scattered(flat.view({t, -1}), tp.group).to(dtype),
                      whole = torch::empty({t, part.numel()}, part.options());
  tp.group->all_gather(whole, part);
  return whole.flatten().narrow(0, 0, x.numel()).view(x.sizes());
}

torch::Tensor enter_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? Mapping<gathered, reduce_scattered>::apply(x, tp.group)
                     : Mapping<same, reduced>::apply(x, tp.group);
}
torch::Tensor enter_linear(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias, const TensorParallel& tp) {
  if (tp.size() == 1) return blocked_linear(x, weight, bias);
  return shared_linear(c10::make_intrusive<Entering>(tp), x, weight, bias);
}
torch::Tensor leave_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? Mapping<reduce_scattered, gathered>::apply(x, tp.group)
                     : Mapping<reduced, same>::apply(x, tp.group);
}
torch::Tensor sum_inside_tensor_parallel(const torch::Tensor& x, const TensorParallel& tp) {
  return Mapping<reduced, reduced>::apply(x, tp.group);
}

}  // namespace anymesh
