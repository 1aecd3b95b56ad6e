#include "framework/kernels/vocabulary_rows.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

#include "framework/kernels/dispatch.h"
#include "framework/lanes.h"

namespace anymesh {
namespace {

struct Sums {
  float maximum, sum;
};

template <class T>
ANYMESH_INLINE Sums sums_loop(const T* row, int64_t n) {
  const int64_t whole = n / kLanes * kLanes;
  Lanes most = all(-INFINITY);
  for (int64_t j = 0; j < whole; j += kLanes) most = max(most, load(row + j));
  float maximum = max(most);
  for (int64_t j = whole; j < n; ++j) maximum = std::max(maximum, static_cast<float>(row[j]));
  Lanes total{};
  for (int64_t j = 0; j < whole; j += kLanes) total += exp(load(row + j) - maximum);
  float rest = 0;
  for (int64_t j = whole; j < n; ++j) rest += std::exp(static_cast<float>(row[j]) - maximum);
  return {maximum, sum(total) + rest};
}

template <class T>
ANYMESH_INLINE void gradient_loop(const T* row, int64_t n, float log_sum, float scale, T* out) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) store(out + j, exp(load(row + j) - log_sum) * scale);
  for (int64_t j = whole; j < n; ++j)
    out[j] = static_cast<T>(std::exp(static_cast<float>(row[j]) - log_sum) * scale);
}

ANYMESH_WIDEST Sums sums_of(const float* row, int64_t n) { return sums_loop(row, n); }
ANYMESH_WIDEST Sums sums_of(const c10::BFloat16* row, int64_t n) { return sums_loop(row, n); }
ANYMESH_WIDEST void gradient_of(const float* row, int64_t n, float log_sum, float scale,
                                float* out) {
  gradient_loop(row, n, log_sum, scale, out);
}
ANYMESH_WIDEST void gradient_of(const c10::BFloat16* row, int64_t n, float log_sum, float scale,
                                c10::BFloat16* out) {
  gradient_loop(row, n, log_sum, scale, out);
}

// work(row, T{}) for all rows, on all threads.
template <class Work>
void for_each_row(const torch::Tensor& logits, const Work& work) {
  of_dtype(logits, [&]<class T>(T type) {
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) work(row, type);
    });
  });
}

}  // namespace

RowSums row_sums(const torch::Tensor& logits, int64_t real) {
  RECORD_FUNCTION("anymesh::row_sums", c10::ArrayRef<const c10::IValue>{});
  const int64_t n = logits.size(0), v = logits.size(1);
  const RowSums out{torch::empty({n}, torch::kFloat), torch::empty({n}, torch::kFloat)};
  auto *maxima = out.maxima.data_ptr<float>(), *sums = out.sums.data_ptr<float>();
  for_each_row(logits, [&]<class T>(int64_t row, T) {
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
  const auto *log_sum = log_sums.const_data_ptr<float>(), *scale = scales.const_data_ptr<float>();
  const auto* target = targets.const_data_ptr<int64_t>();
  for_each_row(logits, [&]<class T>(int64_t row, T) {
    const T* from = logits.const_data_ptr<T>() + row * v;
    T* to = gradient.data_ptr<T>() + row * v;
    gradient_of(from, real, log_sum[row], scale[row], to);
    std::fill(to + real, to + v, T(0));
    if (const int64_t t = target[row]; t >= 0)
      to[t] =
          static_cast<T>((std::exp(static_cast<float>(from[t]) - log_sum[row]) - 1) * scale[row]);
  });
  return gradient;
}

}  // namespace anymesh
