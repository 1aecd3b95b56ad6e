#pragma once

#include <torch/types.h>

#include <optional>

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

// What autograd's functions take for a tensor that may be undefined.
inline std::optional<torch::Tensor> if_defined(const torch::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

}  // namespace anymesh
