#include "framework/kernels/grouped_linear.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "framework/kernels/linear.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Calls work(e, first, n) for each group of rows.
template <class Work>
void for_groups(const std::vector<int64_t>& counts, const Work& work) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    work(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, at::TensorList weights,
                               const std::vector<int64_t>& counts) {
    const int64_t n = weights[0].size(1);
    const torch::Tensor y =
        at::empty({x.size(0), n * static_cast<int64_t>(weights.size())}, x.options());
    for_groups(counts, [&](int64_t e, int64_t first, int64_t rows) {
      const torch::Tensor own = x.narrow(0, first, rows);
      for (size_t i = 0; rows > 0 && i < weights.size(); ++i)
        linear_into(y.narrow(0, first, rows).narrow(1, static_cast<int64_t>(i) * n, n), own,
                    weights[i][e]);
    });
    tensor_list saved = weights.vec();
    saved.push_back(x);
    ctx->save_for_backward(saved);
    ctx->saved_data["counts"] = counts;
    return y;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    tensor_list weights = ctx->get_saved_variables();
    const torch::Tensor x = weights.back(), dy = grads[0].contiguous();
    weights.pop_back();
    const int64_t n = weights[0].size(1);
    const std::vector<int64_t> counts = ctx->saved_data["counts"].toIntVector();
    const auto gradients_of = [&](size_t i) {
      return dy.narrow(1, static_cast<int64_t>(i) * n, n);
    };
    tensor_list out(weights.size() + 2);  // of x, the weights and the counts
    if (ctx->needs_input_grad(0)) {
      out[0] = at::empty_like(x);
      for_groups(counts, [&](int64_t e, int64_t first, int64_t rows) {
        for (size_t i = 0; rows > 0 && i < weights.size(); ++i)
          linear_dx_into(out[0].narrow(0, first, rows), gradients_of(i).narrow(0, first, rows),
                         weights[i][e], /*add=*/i > 0);
      });
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!ctx->needs_input_grad(i + 1)) continue;
      torch::Tensor& dw = out[i + 1] = at::empty_like(weights[i]);
      for_groups(counts, [&](int64_t e, int64_t first, int64_t rows) {
        if (rows == 0) {
          dw[e].zero_();
        } else {
          linear_dw_into(dw[e], gradients_of(i).narrow(0, first, rows), x.narrow(0, first, rows));
        }
      });
    }
    return out;
  }
};

}  // namespace

torch::Tensor grouped_linear(const torch::Tensor& x, const std::vector<torch::Tensor>& weights,
                             const std::vector<int64_t>& counts) {
  return GroupedLinear::apply(x.contiguous(), at::TensorList(weights), counts);
}

}  // namespace anymesh
