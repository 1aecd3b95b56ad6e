#include "framework/tensor_parallel/layers.h"

#include <ATen/Functions.h>

#include "framework/kernels/linear.h"
#include "framework/tensor_parallel/mappings.h"
#include "framework/tensor_parallel/same_bits.h"

namespace anymesh {

ColumnParallelLinear::ColumnParallelLinear(ParamBuilder& params, const std::string& name,
                                           int64_t in, int64_t out, Init init, bool bias,
                                           int sub_params)
    : tp_(params.tp()),
      weight_(params.add(
          {.name = name + ".weight", .shape = {out, in}, .split_dim = 0, .sub_params = sub_params},
          init)),
      parts_(sub_params) {
  if (!bias) return;
  bias_ = params.add({.name = name + ".bias",
                      .shape = {out},
                      .split_dim = 0,
                      .sub_params = sub_params,
                      .weight_decay = false},
                     Init::constant(0));
}

torch::Tensor ColumnParallelLinear::forward(const torch::Tensor& x) const {
  if (tp_.blocks > 0) return same_bits_column(x, weight_, bias_, parts_, tp_);
  return enter_linear(x, weight_, bias_, tp_);  // [b, s, out/t]
}

RowParallelLinear::RowParallelLinear(ParamBuilder& params, const std::string& name, int64_t in,
                                     int64_t out, Init init, bool bias)
    : tp_(params.tp()),
      weight_(params.add({.name = name + ".weight", .shape = {out, in}, .split_dim = 1}, init)) {
  if (!bias) return;
  bias_ = params.add({.name = name + ".bias",
                      .shape = {out},
                      .weight_decay = false,
                      .tp_sum = params.tp().sequence},
                     Init::constant(0));
}

torch::Tensor RowParallelLinear::forward(const torch::Tensor& x) const {
  if (tp_.blocks > 0) return same_bits_row(x, weight_, bias_, tp_);
  // Where no ranks' sums come between, a GPU's product adds the bias on its way.
  if (tp_.group->size() == 1 && !x.is_cpu()) return blocked_linear(x, weight_, bias_);
  const torch::Tensor sum = leave_tensor_parallel(blocked_linear(x, weight_), tp_);
  return bias_.defined() ? sum + bias_ : sum;  // [b, s, out]
}

VocabParallelEmbedding::VocabParallelEmbedding(ParamBuilder& params, const ParamSpec& spec,
                                               Init init)
    : tp_(params.tp()), weight_(params.add(spec, init)) {}

torch::Tensor VocabParallelEmbedding::forward(const torch::Tensor& tokens) const {
  const int64_t rows = weight_.size(0);
  const torch::Tensor local = tokens - tp_.rank() * rows;
  const torch::Tensor elsewhere = local.lt(0).logical_or_(local.ge(rows));
  torch::Tensor hidden = at::embedding(weight_, local.masked_fill(elsewhere, 0), /*padding_idx=*/-1,
                                       /*scale_grad_by_freq=*/false, /*sparse=*/true);  // [b, s, h]
  hidden = hidden.masked_fill(elsewhere.unsqueeze(-1), 0);
  return leave_tensor_parallel(hidden, tp_);
}

torch::Tensor vocab_parallel_logits(const torch::Tensor& hidden, const torch::Tensor& table,
                                    const TensorParallel& tp) {
  if (tp.blocks > 0) return same_bits_column(hidden, table, {}, 1, tp);
  return enter_linear(hidden, table, {}, tp);
}

}  // namespace anymesh
