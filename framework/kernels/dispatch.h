#pragma once

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <optional>

namespace anymesh {

// Whether our kernels accept x: fp32, bf16 and fp16. Everything else takes LibTorch's operators. On
// a GPU, so do operations that LibTorch does in as few passes over memory as our kernel would.
inline bool has_kernels(const torch::Tensor& x) {
  return (x.is_cpu() || x.is_cuda()) && x.is_floating_point() && x.element_size() <= 4;
}
inline bool has_cpu_kernels(const torch::Tensor& x) { return x.is_cpu() && has_kernels(x); }

// Returns x as the kernels take it. On a CPU they compute fp16 in fp32.
inline torch::Tensor computed(const torch::Tensor& x) {
  return x.defined() && x.is_cpu() && x.scalar_type() == torch::kHalf ? x.to(torch::kFloat) : x;
}

// Calls work(float{}) or work(c10::BFloat16{}), by the dtype of x on the CPU.
template <class Work>
auto with_dtype_of(const torch::Tensor& x, const Work& work) {
  if (x.scalar_type() == torch::kFloat) return work(float{});
  return work(c10::BFloat16{});
}

// Calls work(row, T{}) for n rows of x's dtype, on all threads, with at least `grain` rows on one.
template <class Work>
void for_rows(const torch::Tensor& x, int64_t n, int64_t grain, const Work& work) {
  with_dtype_of(x, [&]<class T>(T type) {
    at::parallel_for(0, n, grain, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) work(row, type);
    });
  });
}

// Converts a tensor that may be undefined to an argument for autograd's functions.
inline std::optional<torch::Tensor> if_defined(const torch::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

}  // namespace anymesh
