#include "framework/cuda/kernels.h"

#include <c10/cuda/CUDAStream.h>

namespace anymesh {
namespace {

Element element_of(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.is_cuda() && t.is_contiguous());
  switch (t.scalar_type()) {
    case torch::kFloat:
      return Element::Float;
    case torch::kDouble:
      return Element::Double;
    case torch::kHalf:
      return Element::Half;
    case torch::kBFloat16:
      return Element::BFloat16;
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", t.scalar_type());
  }
}

CUstream_st* stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace

void cuda_adamw(const torch::Tensor& weight, const torch::Tensor& gradient,
                const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                const AdamwCoefficients<double>& coefficients, const torch::Tensor& rounded) {
  const Element dtype = element_of(weight);
  TORCH_INTERNAL_ASSERT((dtype == Element::Float || dtype == Element::Double) &&
                        element_of(gradient) == dtype && element_of(exp_avg) == dtype &&
                        element_of(exp_avg_sq) == dtype);
  const Elements copy = rounded.defined() ? Elements{rounded.data_ptr(), element_of(rounded)}
                                          : Elements{nullptr, dtype};
  launch_adamw({.weight = weight.data_ptr(),
                .gradient = gradient.const_data_ptr(),
                .exp_avg = exp_avg.data_ptr(),
                .exp_avg_sq = exp_avg_sq.data_ptr(),
                .dtype = dtype,
                .n = weight.numel()},
               coefficients, copy, stream());
}

void cuda_dropout(const torch::Tensor& x, const torch::Tensor& y, const DropoutKey& key) {
  TORCH_INTERNAL_ASSERT(element_of(x) == element_of(y) && x.numel() == y.numel());
  launch_dropout(x.const_data_ptr(), {y.data_ptr(), element_of(y)}, x.numel(), key, stream());
}

}  // namespace anymesh
