#include "framework/kernels/adamw_sweeps.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/non_temporal_writer.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

constexpr int64_t kBlock = 1 << 12;  // elements rounded while they are in the cache

// The compiler vectorises the loop for each CPU. With contraction off (CMakeLists.txt) every width
// rounds alike.
template <class T>
ANYMESH_INLINE void adamw_loop(T* __restrict weight, const T* __restrict gradient,
                               T* __restrict exp_avg, T* __restrict exp_avg_sq, int64_t n,
                               const AdamwCoefficients<T>& k) {
  for (int64_t i = 0; i < n; ++i)
    adamw_element(weight[i], gradient[i], exp_avg[i], exp_avg_sq[i], k);
}

using FourFloats [[gnu::vector_size(16)]] = float;
using FourDoubles [[gnu::vector_size(32)]] = double;

ANYMESH_INLINE FourDoubles load_four(const float* p) {
  FourFloats x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, FourDoubles);
}
ANYMESH_INLINE FourDoubles load_four(const double* p) {
  FourDoubles x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

constexpr int64_t kAhead = 512;  // elements to prefetch ahead of their use

template <class T>
ANYMESH_INLINE double squares_loop(const T* x, int64_t n) {
  FourDoubles sums[4]{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __builtin_prefetch(x + i + kAhead);
    for (int part = 0; part < 4; ++part) {
      const FourDoubles a = load_four(x + i + 4 * part);
      sums[part] += a * a;
    }
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (const FourDoubles& part : sums)
    for (int lane = 0; lane < 4; ++lane) sum += part[lane];
  return sum;
}

template <class From, class To>
void convert(const From* x, int64_t n, To* out) {
  const int64_t whole = n / kLanes * kLanes;
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t i = 0; i < whole; i += kLanes) store(out + i, load<Lanes>(x + i));
  });
  for (int64_t i = whole; i < n; ++i) out[i] = x[i];
}
void convert(const double* x, int64_t n, c10::BFloat16* out) { std::copy_n(x, n, out); }

void adamw_on_cpu(const AdamwTensors& p, const AdamwCoefficients<double>& coefficients) {
  const bool rounds_here = p.rounded.defined() && p.rounded.scalar_type() == torch::kBFloat16;
  AT_DISPATCH_FLOATING_TYPES(p.weight.scalar_type(), "adamw_step", [&] {
    using T = scalar_t;
    const AdamwCoefficients<T> k = coefficients.as<T>();
    T *w = p.weight.data_ptr<T>(), *m = p.exp_avg.data_ptr<T>(), *v = p.exp_avg_sq.data_ptr<T>();
    const T* g = p.gradient.const_data_ptr<T>();
    auto* bf16 = rounds_here ? p.rounded.data_ptr<c10::BFloat16>() : nullptr;
    at::parallel_for(0, p.weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
      NonTemporalWriter<c10::BFloat16, kBlock> writer(p.weight.numel());
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t n = std::min(kBlock, end - i);
        with_widest_simd(
            [=](auto) ANYMESH_INLINE_LAMBDA { adamw_loop(w + i, g + i, m + i, v + i, n, k); });
        if (bf16)
          writer.write(bf16 + i, n, [&](c10::BFloat16* place) { convert(w + i, n, place); });
      }
    });
  });
  if (p.rounded.defined() && !rounds_here) p.rounded.copy_(p.weight);
}

}  // namespace

void adamw_step(const std::vector<AdamwTensors>& pieces, const AdamOptions& adam, int64_t step,
                double lr, double weight_decay, double gradient_scale) {
  const auto steps = static_cast<double>(step);
  const double c1 = 1 - std::pow(adam.beta1, steps), c2 = 1 - std::pow(adam.beta2, steps);
  const AdamwCoefficients<double> coefficients{.beta1 = adam.beta1,
                                               .beta2 = adam.beta2,
                                               .eps = adam.eps,
                                               .step_size = lr / c1,
                                               .inverse_c2 = 1 / c2,
                                               .decay = lr * weight_decay,
                                               .gradient_scale = gradient_scale};
  if (!pieces.empty() && pieces[0].weight.is_cuda()) return cuda_adamw(pieces, coefficients);
  for (const AdamwTensors& piece : pieces) adamw_on_cpu(piece, coefficients);
}

void widen(const torch::Tensor& x, const torch::Tensor& flat) {
  if (!x.is_cpu() || x.scalar_type() != torch::kBFloat16 || flat.scalar_type() != torch::kFloat) {
    flat.copy_(x.flatten());
    return;
  }
  RECORD_FUNCTION("anymesh::widen", c10::ArrayRef<const c10::IValue>{});
  const torch::Tensor from = x.contiguous();
  at::parallel_for(0, flat.numel(), kGrain, [&](int64_t begin, int64_t end) {
    NonTemporalWriter<float, kBlock> writer(flat.numel());
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      writer.write(flat.data_ptr<float>() + i, n, [&](float* place) {
        convert(from.const_data_ptr<c10::BFloat16>() + i, n, place);
      });
    }
  });
}

// Sums in parts that are the same whatever the number of threads.
double sum_of_squares(const torch::Tensor& flat) {
  const int64_t n = flat.numel();
  std::vector<double> parts(static_cast<size_t>((n + kGrain - 1) / kGrain));
  AT_DISPATCH_FLOATING_TYPES(flat.scalar_type(), "sum_of_squares", [&] {
    const scalar_t* x = flat.const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        parts[static_cast<size_t>(i)] = with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
          return squares_loop(x + i * kGrain, std::min(kGrain, n - i * kGrain));
        });
    });
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double sum_of_squares(const std::vector<torch::Tensor>& flats) {
  if (flats.empty() || flats[0].is_cpu()) {
    double sum = 0;
    for (const torch::Tensor& flat : flats) sum += sum_of_squares(flat);
    return sum;
  }
  if (flats[0].is_cuda()) return cuda_sum_of_squares(flats);
  torch::Tensor sum = at::zeros({}, flats[0].options().dtype(torch::kDouble));
  for (const torch::Tensor& flat : flats) sum += flat.to(torch::kDouble).square().sum();
  return sum.item<double>();
}

}  // namespace anymesh
