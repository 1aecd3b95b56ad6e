#include "framework/kernels/vocabulary_rows.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

template <class T>
float maximum_of(const T* row, int64_t n) {
  return with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    Lanes maxima = -INFINITY;
    for (int64_t j = 0; j < n; j += kLanes)
      maxima = max(maxima, load_some<Lanes>(row + j, std::min(kLanes, n - j), -INFINITY));
    return max(maxima);
  });
}

template <class T>
float sum_of(const T* row, int64_t n, float maximum) {
  return with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    Lanes part;
    for (int64_t j = 0; j < n; j += kLanes)
      part += exp(load_some<Lanes>(row + j, std::min(kLanes, n - j), -INFINITY) - maximum);
    return sum(part);
  });
}

template <class T>
void write_gradient_row(const T* row, int64_t n, float log_sum, float scale, T* out) {
  for_lanes(n, [=]<class Lanes>(Lanes, int64_t j, int64_t count) ANYMESH_INLINE_LAMBDA {
    store_some(out + j, exp(load_some<Lanes>(row + j, count) - log_sum) * scale, count);
  });
}

}  // namespace

RowSums row_sums(const torch::Tensor& rows, int64_t real, const torch::Tensor& given) {
  RECORD_FUNCTION("anymesh::row_sums", (std::array<c10::IValue, 1>{rows}));
  const torch::Tensor logits = computed(rows);
  const int64_t n = logits.size(0), v = logits.stride(0);
  const auto fp32 = logits.options().dtype(torch::kFloat);
  const RowSums out{given.defined() ? given : torch::empty({n}, fp32), torch::empty({n}, fp32)};
  if (logits.is_cuda()) {
    cuda_row_sums(logits, real, out.maxima, out.sums);
    return out;
  }
  auto *maxima = out.maxima.data_ptr<float>(), *sums = out.sums.data_ptr<float>();
  for_rows(logits, n, 1, [&]<class T>(int64_t row, T) {
    const T* from = logits.const_data_ptr<T>() + row * v;
    if (!given.defined()) maxima[row] = maximum_of(from, real);
    sums[row] = sum_of(from, real, maxima[row]);
  });
  return out;
}

torch::Tensor logits_gradient(const torch::Tensor& rows, int64_t real,
                              const torch::Tensor& log_sums, const torch::Tensor& targets,
                              const torch::Tensor& scales) {
  RECORD_FUNCTION("anymesh::logits_gradient", (std::array<c10::IValue, 1>{rows}));
  const torch::Tensor logits = computed(rows);
  const int64_t v = logits.size(1);
  torch::Tensor gradient = torch::empty_like(logits);
  if (logits.is_cuda()) {
    cuda_logits_gradient(logits, real, log_sums, targets, scales, gradient);
    return gradient;
  }
  const auto *log_sum = log_sums.const_data_ptr<float>(), *scale = scales.const_data_ptr<float>();
  const auto* target = targets.const_data_ptr<int64_t>();
  for_rows(logits, logits.size(0), 1, [&]<class T>(int64_t row, T) {
    const T* from = logits.const_data_ptr<T>() + row * v;
    T* to = gradient.data_ptr<T>() + row * v;
    write_gradient_row(from, real, log_sum[row], scale[row], to);
    std::fill(to + real, to + v, T(0));
    if (const int64_t t = target[row]; t >= 0)
      to[t] =
          static_cast<T>((std::exp(static_cast<float>(from[t]) - log_sum[row]) - 1) * scale[row]);
  });
  return gradient.to(rows.scalar_type());
}

}  // namespace anymesh
