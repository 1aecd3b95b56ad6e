#include "framework/kernels/gradient_sink.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace anymesh {
namespace {

// Gives a gradient to the leaf's sink, now or when it makes those that it puts off. `make` returns
// it, or gives it to the sink itself and returns nothing. Returns what remains for autograd.
template <class Make>
torch::Tensor given(const torch::Tensor& leaf, Make make) {
  GradientSink* const sink = sink_of(leaf);
  if (!sink || !sink->puts_off()) return make(sink);
  sink->put_off([sink, make = std::move(make)] {
    const torch::Tensor gradient = make(sink);
    if (gradient.defined()) sink->add(gradient);
  });
  return {};
}

}  // namespace

GradientSink* sink_of(const torch::Tensor& leaf) {
  if (!leaf.requires_grad()) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
}

int64_t rows_of_part(const torch::Tensor& leaf) {
  GradientSink* const sink = sink_of(leaf);
  return sink ? sink->rows_of_part() : 0;
}

bool puts_off(const torch::Tensor& leaf) {
  const GradientSink* const sink = sink_of(leaf);
  return sink && sink->puts_off();
}

torch::Tensor gradient_of_product(const torch::Tensor& dy, const std::function<torch::Tensor()>& x,
                                  const torch::Tensor& leaf,
                                  torch::Tensor (*product)(const torch::Tensor&,
                                                           const torch::Tensor&)) {
  return given(leaf, [=](GradientSink* sink) {
    const torch::Tensor input = x();
    return sink && sink->add_product(dy, input) ? torch::Tensor() : product(dy, input);
  });
}

torch::Tensor gradient_of_groups(const torch::Tensor& dy, const torch::Tensor& x,
                                 const std::vector<int64_t>& counts, const torch::Tensor& leaf,
                                 torch::Tensor (*product)(const torch::Tensor&,
                                                          const torch::Tensor&,
                                                          const std::vector<int64_t>&)) {
  return given(leaf, [=](GradientSink* sink) {
    return sink && sink->add_groups(dy, x, counts) ? torch::Tensor() : product(dy, x, counts);
  });
}

torch::Tensor gradient_of_parts(const torch::Tensor& parts, const torch::Tensor& leaf) {
  return given(leaf, [=, dtype = leaf.scalar_type()](GradientSink* sink) {
    if (sink && sink->add_parts(parts)) return torch::Tensor();
    return (parts.size(0) == 1 ? parts[0] : parts.sum(0)).to(dtype);
  });
}

}  // namespace anymesh
