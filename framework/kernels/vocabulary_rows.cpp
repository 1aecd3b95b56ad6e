#include "framework/kernels/vocabulary_rows.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

struct Sums {
  float maximum, sum;
};

template <class T>
Sums sums_of(const T* row, int64_t n) {
  const int64_t whole = n / kLanes * kLanes;
  float maximum = with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    Lanes maxima = -INFINITY;
    for (int64_t j = 0; j < whole; j += kLanes) maxima = max(maxima, load<Lanes>(row + j));
    return max(maxima);
  });
  for (int64_t j = whole; j < n; ++j) maximum = std::max(maximum, static_cast<float>(row[j]));
  float total = with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    Lanes part;
    for (int64_t j = 0; j < whole; j += kLanes) part += exp(load<Lanes>(row + j) - maximum);
    return sum(part);
  });
  for (int64_t j = whole; j < n; ++j) total += std::exp(static_cast<float>(row[j]) - maximum);
  return {maximum, total};
}

template <class T>
void write_gradient_row(const T* row, int64_t n, float log_sum, float scale, T* out) {
  const int64_t whole = n / kLanes * kLanes;
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t j = 0; j < whole; j += kLanes)
      store(out + j, exp(load<Lanes>(row + j) - log_sum) * scale);
  });
  for (int64_t j = whole; j < n; ++j)
    out[j] = static_cast<T>(std::exp(static_cast<float>(row[j]) - log_sum) * scale);
}

}  // namespace

RowSums row_sums(const torch::Tensor& logits, int64_t real) {
  RECORD_FUNCTION("anymesh::row_sums", c10::ArrayRef<const c10::IValue>{});
  const int64_t n = logits.size(0), v = logits.size(1);
  const auto fp32 = logits.options().dtype(torch::kFloat);
  const RowSums out{torch::empty({n}, fp32), torch::empty({n}, fp32)};
  if (logits.is_cuda()) {
    cuda_row_sums(logits, real, out.maxima, out.sums);
    return out;
  }
  auto *maxima = out.maxima.data_ptr<float>(), *sums = out.sums.data_ptr<float>();
  for_rows(logits, n, 1, [&]<class T>(int64_t row, T) {
    const Sums of = sums_of(logits.const_data_ptr<T>() + row * v, real);
    maxima[row] = of.maximum;
    sums[row] = of.sum;
  });
  return out;
}

torch::Tensor logits_gradient(const torch::Tensor& logits, int64_t real,
                              const torch::Tensor& log_sums, const torch::Tensor& targets,
                              const torch::Tensor& scales) {
  RECORD_FUNCTION("anymesh::logits_gradient", c10::ArrayRef<const c10::IValue>{});
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
  return gradient;
}

}  // namespace anymesh
