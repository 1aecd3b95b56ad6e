#include "framework/tensor_parallel/lora.h"

#include <ATen/Functions.h>

#include "framework/kernels/linear.h"
#include "framework/tensor_parallel/layers.h"
#include "framework/tensor_parallel/mappings.h"

namespace anymesh {

torch::Tensor LoraAdapter::addend(const torch::Tensor& x) const {
  const auto of = [&](const Part& part) {  // [b, s, groups * rows]
    return blocked_linear(blocked_linear(x, part.a) * scaling_, part.b);
  };
  if (parts_.size() == 1) return of(parts_[0]);
  std::vector<torch::Tensor> columns;
  for (const Part& part : parts_)
    columns.push_back(
        part.a.defined()
            ? of(part).unflatten(2, {groups_, part.rows})
            : at::zeros({}, x.options()).expand({x.size(0), x.size(1), groups_, part.rows}));
  return at::cat(columns, 3).flatten(2);
}

torch::Tensor ColumnParallelLinear::forward(const torch::Tensor& x, const LoraAdapter& adapter,
                                            const DropoutContext& context) const {
  if (!adapter.defined()) return forward(x);
  const torch::Tensor whole = enter_tensor_parallel(x, tp_);  // [b, s, in]
  return blocked_linear(whole, weight_, bias_) + adapter.addend(adapter.drop(whole, context));
}

// A rank's columns follow one another in a sample's [in, s], so its dropout is a part of the whole
// one's.
torch::Tensor RowParallelLinear::forward(const torch::Tensor& x, const LoraAdapter& adapter,
                                         const DropoutContext& context) const {
  if (!adapter.defined()) return forward(x);
  const torch::Tensor columns = x.transpose(1, 2),  // [b, in/t, s]
      dropped = adapter.drop(columns, context, tp_.rank() * columns[0].numel()).transpose(1, 2),
                      sum = leave_tensor_parallel(
                          blocked_linear(x, weight_) + adapter.addend(dropped), tp_);
  return bias_.defined() ? sum + bias_ : sum;  // [b, s, out]
}

}  // namespace anymesh
