#include "framework/kernels/heads.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

Heads views_of(const torch::Tensor& projected) {
  const auto parts = projected.split_with_sizes({projected.size(3) - 2, 1, 1}, 3);
  const auto heads = [](const torch::Tensor& x) { return x.flatten(2, 3).transpose(1, 2); };
  return {heads(parts[0]), heads(parts[1]), heads(parts[2])};
}

struct SplitHeads : torch::autograd::Function<SplitHeads> {
  static tensor_list forward(AutogradContext* ctx, const torch::Tensor& input,
                             const std::optional<torch::Tensor>& cos,
                             const std::optional<torch::Tensor>& sin,
                             const std::optional<torch::Tensor>& positions) {
    const torch::Tensor qkv = input.contiguous();
    const int64_t b = qkv.size(0), s = qkv.size(1), k = qkv.size(2), group = qkv.size(3) - 2,
                  d = qkv.size(4);
    HeadMoves moves{.qkv = qkv,
                    .cos = cos.value_or(torch::Tensor()),
                    .sin = sin.value_or(torch::Tensor()),
                    .positions = positions.value_or(torch::Tensor())};
    const auto room = [&](int64_t heads) {
      return torch::empty({b, s, heads, d}, qkv.options()).transpose(1, 2);
    };
    if (cos || (group > 1 && k > 1)) moves.q = room(k * group);
    if (cos) moves.k = room(k);
    if (moves.q.defined()) cuda_split_heads(moves);
    ctx->saved_data["shape"] = qkv.sizes().vec();
    ctx->save_for_backward({moves.cos, moves.sin, moves.positions});
    const at::AutoDispatchBelowADInplaceOrView no_views;  // autograd shall not know them as views
    const Heads views = views_of(qkv);
    return {moves.q.defined() ? moves.q : views.q, moves.k.defined() ? moves.k : views.k, views.v};
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    for (torch::Tensor& gradient : grads)
      if (gradient.stride(3) != 1) gradient = gradient.contiguous();
    const torch::Tensor dqkv =
        torch::empty(ctx->saved_data["shape"].toIntVector(), grads[0].options());
    cuda_join_heads({dqkv, grads[0], grads[1], grads[2], saved[0], saved[1], saved[2]});
    return {dqkv, torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation) {
  if (!rotation.cos.defined()) return x;
  const int64_t half = rotation.cos.size(1), rest = x.size(-1) - 2 * half;
  const auto parts = x.split_with_sizes({half, half, rest}, -1);
  const auto at_positions = [&](const torch::Tensor& table) {  // [s, r/2] or [b, 1, s, r/2]
    const torch::Tensor& rows = rotation.positions;
    return rows.defined() ? at::embedding(table, rows).unsqueeze(1) : table;
  };
  const torch::Tensor c = at_positions(rotation.cos), s = at_positions(rotation.sin);
  return at::cat({parts[0] * c - parts[1] * s, parts[1] * c + parts[0] * s, parts[2]}, -1);
}

Heads split_heads(const torch::Tensor& projected, const Rotation& rotation) {
  if (projected.is_cuda() && has_kernels(projected)) {
    const tensor_list heads =
        SplitHeads::apply(projected, if_defined(rotation.cos), if_defined(rotation.sin),
                          if_defined(rotation.positions));
    return {heads[0], heads[1], heads[2]};
  }
  const Heads heads = views_of(projected);
  return {rotate(heads.q, rotation), rotate(heads.k, rotation), heads.v};
}

}  // namespace anymesh
