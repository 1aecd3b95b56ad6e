#include "framework/tensor_parallel/same_bits.h"

#include <torch/csrc/autograd/custom_function.h>

#include "framework/kernels/dispatch.h"
#include "framework/kernels/fixed_order.h"
#include "framework/kernels/gradient_sink.h"
#include "framework/tensor_parallel/mappings.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

void keep(AutogradContext* ctx, const TensorParallel& tp) {
  ctx->saved_data["tp"] = c10::IValue::make_capsule(tp.group);
  ctx->saved_data["sequence"] = tp.sequence;
  ctx->saved_data["blocks"] = tp.blocks;
}
TensorParallel kept(AutogradContext* ctx) {
  return {c10::static_intrusive_pointer_cast<Communicator>(ctx->saved_data["tp"].toCapsule()),
          ctx->saved_data["sequence"].toBool(),
          static_cast<int>(ctx->saved_data["blocks"].toInt())};
}

torch::Tensor bias_gradient(const torch::Tensor& bias, const torch::Tensor& dy) {
  const int64_t rows = rows_of_part(bias);
  return gradient_of_parts(fixed_row_sums(dy, rows > 0 ? rows : dy.numel()), bias);
}

struct Column : torch::autograd::Function<Column> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias, int64_t parts,
                               const TensorParallel& tp) {
    const torch::Tensor whole = gather_sequence(x, tp);  // [b, s, in]
    ctx->save_for_backward({whole, weight, bias.value_or(torch::Tensor())});
    ctx->saved_data["parts"] = parts;
    keep(ctx, tp);
    return fixed_y(whole, weight, bias.value_or(torch::Tensor()));  // [b, s, out/t]
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2],
                        dy = grads[0].contiguous();
    const TensorParallel tp = kept(ctx);
    torch::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0))
      dx = tree_leave(
          fixed_dx_in_blocks(dy, weight, tp.blocks_here(), ctx->saved_data["parts"].toInt()),
          x.scalar_type(), tp);
    if (ctx->needs_input_grad(1))
      dw = gradient_of_product(
          dy, [x] { return x; }, weight, fixed_dw);
    if (bias.defined() && ctx->needs_input_grad(2)) db = bias_gradient(bias, dy);
    return {dx, dw, db, {}, {}};
  }
};

struct Row : torch::autograd::Function<Row> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias, const TensorParallel& tp) {
    ctx->save_for_backward({x, weight, bias.value_or(torch::Tensor())});
    keep(ctx, tp);
    const torch::Tensor sum =
        tree_leave(fixed_y_in_blocks(x, weight, tp.blocks_here()), x.scalar_type(), tp);
    return bias ? sum + *bias : sum;  // [b, s, out]
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2],
                        dy = grads[0].contiguous();
    const torch::Tensor whole = gather_sequence(dy, kept(ctx));
    torch::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0)) dx = fixed_dx(whole, weight);
    if (ctx->needs_input_grad(1))
      dw = gradient_of_product(
          whole, [x] { return x; }, weight, fixed_dw);
    if (bias.defined() && ctx->needs_input_grad(2)) db = bias_gradient(bias, dy);
    return {dx, dw, db, {}};
  }
};

}  // namespace

torch::Tensor same_bits_column(const torch::Tensor& x, const torch::Tensor& weight,
                               const torch::Tensor& bias, int64_t parts, const TensorParallel& tp) {
  return Column::apply(x, weight, if_defined(bias), parts, tp);
}

torch::Tensor same_bits_row(const torch::Tensor& x, const torch::Tensor& weight,
                            const torch::Tensor& bias, const TensorParallel& tp) {
  return Row::apply(x, weight, if_defined(bias), tp);
}

}  // namespace anymesh
