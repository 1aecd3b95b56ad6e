#include "framework/tensor_parallel/cross_entropy.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "framework/kernels/dispatch.h"
#include "framework/kernels/vocabulary_rows.h"
#include "framework/tensor_parallel/mappings.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& logits,
                               const torch::Tensor& labels, int64_t vocab_size, const CommPtr& tp) {
    const int64_t columns = logits.size(-1), offset = tp->rank() * columns;
    const int64_t real = std::clamp<int64_t>(vocab_size - offset, 0, columns);
    const auto dtype = logits.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const torch::Tensor x = logits.narrow(-1, 0, real).to(dtype);  // [b, s, real]

    torch::Tensor maximum = real > 0
                                ? x.amax(-1, /*keepdim=*/true)
                                : torch::full_like(labels, -INFINITY, x.options()).unsqueeze(-1);
    tp->all_reduce(maximum, ReduceOp::Max);
    torch::Tensor softmax = x.sub(maximum);  // [b, s, real], only the exponent so far

    const torch::Tensor local = labels - offset;
    const torch::Tensor elsewhere = local.lt(0).logical_or_(local.ge(real));
    const torch::Tensor target = local.masked_fill(elsewhere, 0).unsqueeze(-1);  // [b, s, 1]
    torch::Tensor label_logit =
        real > 0 ? softmax.gather(-1, target).squeeze(-1) : torch::zeros_like(labels, x.options());
    label_logit.masked_fill_(elsewhere, 0);
    tp->all_reduce(label_logit);

    softmax.exp_();
    torch::Tensor sum = softmax.sum(-1, /*keepdim=*/true);  // [b, s, 1]
    tp->all_reduce(sum);
    softmax.div_(sum);

    ctx->save_for_backward({softmax, target, elsewhere});
    ctx->saved_data["columns"] = columns;
    ctx->saved_data["dtype"] = logits.scalar_type();
    return sum.squeeze(-1).log_().sub_(label_logit);
  }

  // d loss / d logits = softmax - one_hot(label)
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    torch::Tensor dx = saved[0];  // [b, s, real], not shared: becomes the gradient in place
    const torch::Tensor &target = saved[1], &elsewhere = saved[2];
    const int64_t columns = ctx->saved_data["columns"].toInt();
    if (dx.size(-1) > 0)
      dx.scatter_add_(-1, target,
                      elsewhere.logical_not().to(dx.scalar_type()).neg_().unsqueeze(-1));
    dx.mul_(grads[0].unsqueeze(-1));
    if (dx.size(-1) < columns) dx = at::constant_pad_nd(dx, {0, columns - dx.size(-1)});
    return {dx.to(ctx->saved_data["dtype"].toScalarType()), {}, {}, {}};
  }
};

// Both return the maxima and sums over the whole vocabulary.
RowSums sums_of_ranks(const torch::Tensor& rows, int64_t real, const CommPtr& tp) {
  auto [mine, sum] = row_sums(rows, real);
  const torch::Tensor maximum = mine.clone();
  tp->all_reduce(maximum, ReduceOp::Max);
  sum.mul_(mine.sub_(maximum).exp_());
  tp->all_reduce(sum);
  return {maximum, sum};
}

RowSums sums_in_blocks(const torch::Tensor& rows, int64_t real, const CommPtr& tp, int64_t blocks) {
  const int64_t n = rows.size(0), here = blocks / tp->size(), width = rows.size(1) / here;
  const torch::Tensor maximum = real > 0 ? rows.narrow(1, 0, real).amax(1).to(torch::kFloat)
                                         : at::full({n}, -INFINITY, torch::kFloat);
  tp->all_reduce(maximum, ReduceOp::Max);
  const torch::Tensor all = at::empty({blocks, n}, torch::kFloat),
                      mine = all.narrow(0, tp->rank() * here, here);
  for (int64_t b = 0; b < here; ++b)
    mine[b].copy_(row_sums(rows.narrow(1, b * width, width),
                           std::clamp<int64_t>(real - b * width, 0, width), maximum)
                      .sums);
  tp->all_gather(all, mine);
  return {maximum, tree_sum(all)};
}

// The same by kernels that keep no tensor of the logits' size except the logits.
struct FusedCrossEntropy : torch::autograd::Function<FusedCrossEntropy> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& logits,
                               const torch::Tensor& labels, int64_t vocab_size, const CommPtr& tp,
                               int64_t blocks) {
    const int64_t columns = logits.size(-1), offset = tp->rank() * columns;
    const int64_t real = std::clamp<int64_t>(vocab_size - offset, 0, columns);
    const torch::Tensor rows = logits.reshape({-1, columns}).contiguous();  // [b s, v/t]
    const torch::Tensor local = labels.flatten() - offset;
    const torch::Tensor elsewhere = local.lt(0).logical_or_(local.ge(real));

    auto [maximum, sum] =
        blocks > 0 ? sums_in_blocks(rows, real, tp, blocks) : sums_of_ranks(rows, real, tp);
    torch::Tensor label_logit = torch::zeros_like(maximum);
    if (real > 0)
      label_logit = rows.gather(-1, local.masked_fill(elsewhere, 0).unsqueeze(-1))
                        .squeeze(-1)
                        .to(torch::kFloat)
                        .sub_(maximum)
                        .masked_fill_(elsewhere, 0);
    tp->all_reduce(label_logit);

    sum.log_();
    ctx->save_for_backward({rows, maximum + sum, local.masked_fill(elsewhere, -1)});
    ctx->saved_data["real"] = real;
    ctx->saved_data["shape"] = logits.sizes().vec();
    return sum.sub(label_logit).view(labels.sizes());
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor gradient =
        logits_gradient(saved[0], ctx->saved_data["real"].toInt(), saved[1], saved[2],
                        grads[0].to(torch::kFloat).flatten().contiguous());
    return {gradient.view(ctx->saved_data["shape"].toIntVector()), {}, {}, {}, {}};
  }
};

}  // namespace

torch::Tensor vocab_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels,
                                           int64_t vocab_size, const TensorParallel& tp) {
  return has_kernels(logits)
             ? FusedCrossEntropy::apply(logits, labels, vocab_size, tp.group, int64_t{tp.blocks})
             : CrossEntropy::apply(logits, labels, vocab_size, tp.group);
}

}  // namespace anymesh
