#include "framework/kernels/grouped_linear.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/gradient_sink.h"
#include "framework/kernels/linear.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Returns the columns of y [r, n * weights] that belong to weight i.
torch::Tensor columns(const torch::Tensor& y, size_t i, size_t weights) {
  const int64_t n = y.size(1) / static_cast<int64_t>(weights);
  return y.narrow(1, static_cast<int64_t>(i) * n, n);
}

// A product for each group and weight.
struct OneByOne {
  static torch::Tensor y(const torch::Tensor& x, const tensor_list& weights,
                         const RowGroups& groups) {
    const auto n = static_cast<int64_t>(weights.size()) * weights[0].size(1);
    const torch::Tensor y = at::empty({x.size(0), n}, x.options());
    for_groups(groups.counts, [&](int64_t e, int64_t first, int64_t rows) {
      for (size_t i = 0; rows > 0 && i < weights.size(); ++i)
        linear_into(columns(y, i, weights.size()).narrow(0, first, rows), x.narrow(0, first, rows),
                    weights[i][e]);
    });
    return y;
  }
  static torch::Tensor dx(const torch::Tensor& dy, const tensor_list& weights,
                          const RowGroups& groups) {
    const torch::Tensor dx = at::empty({dy.size(0), weights[0].size(2)}, dy.options());
    for_groups(groups.counts, [&](int64_t e, int64_t first, int64_t rows) {
      for (size_t i = 0; rows > 0 && i < weights.size(); ++i)
        linear_dx_into(dx.narrow(0, first, rows),
                       columns(dy, i, weights.size()).narrow(0, first, rows), weights[i][e],
                       /*add=*/i > 0);
    });
    return dx;
  }
};

// A product for each weight.
struct AtOnce {
  static torch::Tensor y(const torch::Tensor& x, const tensor_list& weights,
                         const RowGroups& groups) {
    tensor_list each;
    for (const torch::Tensor& weight : weights)
      each.push_back(at::_grouped_mm(x, weight.transpose(1, 2), groups.ends));
    return each.size() == 1 ? each[0] : at::cat(each, 1);
  }
  static torch::Tensor dx(const torch::Tensor& dy, const tensor_list& weights,
                          const RowGroups& groups) {
    torch::Tensor dx;
    for (size_t i = 0; i < weights.size(); ++i) {
      const torch::Tensor part =
          at::_grouped_mm(columns(dy, i, weights.size()), weights[i], groups.ends);
      dx = i == 0 ? part : dx.add_(part);
    }
    return dx;
  }
};

torch::Tensor dw(const torch::Tensor& dy, const torch::Tensor& x,
                 const std::vector<int64_t>& counts) {
  const torch::Tensor dw =
      at::empty({static_cast<int64_t>(counts.size()), dy.size(1), x.size(1)}, x.options());
  for_groups(counts, [&](int64_t e, int64_t first, int64_t rows) {
    if (rows == 0)
      dw[e].zero_();
    else
      linear_dw_into(dw[e], dy.narrow(0, first, rows), x.narrow(0, first, rows));
  });
  return dw;
}

template <class Products>
struct GroupedLinear : torch::autograd::Function<GroupedLinear<Products>> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, at::TensorList weights,
                               const RowGroups& groups) {
    tensor_list saved = weights.vec();
    const torch::Tensor y = Products::y(x, saved, groups);
    saved.insert(saved.end(), {x, groups.ends});
    ctx->save_for_backward(saved);
    ctx->saved_data["counts"] = groups.counts;
    return y;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    tensor_list weights = ctx->get_saved_variables();
    const RowGroups groups{ctx->saved_data["counts"].toIntVector(), weights.back()};
    weights.pop_back();
    const torch::Tensor x = weights.back(), dy = grads[0].contiguous();
    weights.pop_back();
    tensor_list out(weights.size() + 2);  // of x, the weights and the groups
    if (ctx->needs_input_grad(0)) out[0] = Products::dx(dy, weights, groups);
    for (size_t i = 0; i < weights.size(); ++i)
      if (ctx->needs_input_grad(i + 1))
        out[i + 1] =
            gradient_of_groups(columns(dy, i, weights.size()), x, groups.counts, weights[i], dw);
    return out;
  }
};

}  // namespace

torch::Tensor grouped_linear(const torch::Tensor& x, const std::vector<torch::Tensor>& weights,
                             const RowGroups& groups) {
  const bool at_once =
      x.is_cuda() && x.size(0) > 0 && x.scalar_type() == torch::kBFloat16 &&
      cuda_multiplies_groups() &&
      std::ranges::all_of(weights[0].sizes().slice(1), [](int64_t n) { return n % 8 == 0; });
  if (at_once) return grouped_linear_at_once(x, weights, groups);
  return GroupedLinear<OneByOne>::apply(x.contiguous(), at::TensorList(weights), groups);
}

torch::Tensor grouped_linear_at_once(const torch::Tensor& x,
                                     const std::vector<torch::Tensor>& weights,
                                     const RowGroups& groups) {
  return GroupedLinear<AtOnce>::apply(x.contiguous(), at::TensorList(weights), groups);
}

}  // namespace anymesh
