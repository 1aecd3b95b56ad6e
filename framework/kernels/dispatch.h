#pragma once

#include <torch/types.h>

namespace anymesh {

// What there are kernels for: fp32 and bf16 in the CPU's memory. All else takes LibTorch's
// operators.
inline bool has_kernels(const torch::Tensor& x) {
  return x.device().is_cpu() &&
         (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kBFloat16);
}

// work(float{}) or work(c10::BFloat16{}), as x is.
template <class Work>
void of_dtype(const torch::Tensor& x, const Work& work) {
  if (x.scalar_type() == torch::kFloat) return work(float{});
  work(c10::BFloat16{});
}

}  // namespace anymesh
