#include "framework/kernels/gradient_sink.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace anymesh {

GradientSink* sink_of(const torch::Tensor& leaf) {
  if (!leaf.requires_grad()) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
}

int64_t rows_of_part(const torch::Tensor& leaf) {
  GradientSink* const sink = sink_of(leaf);
  return sink ? sink->rows_of_part() : 0;
}

torch::Tensor gradient_of_product(const torch::Tensor& dy, const torch::Tensor& x,
                                  const torch::Tensor& leaf,
                                  torch::Tensor (*product)(const torch::Tensor&,
                                                           const torch::Tensor&)) {
  GradientSink* const sink = sink_of(leaf);
  if (sink && sink->add_product(dy, x)) return {};
  return product(dy, x);
}

torch::Tensor gradient_of_parts(const torch::Tensor& parts, const torch::Tensor& leaf) {
  GradientSink* const sink = sink_of(leaf);
  if (sink && sink->add_parts(parts)) return {};
  return (parts.size(0) == 1 ? parts[0] : parts.sum(0)).to(leaf.dtype());
}

}  // namespace anymesh
