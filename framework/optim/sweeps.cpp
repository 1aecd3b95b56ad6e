#include "framework/optim/sweeps.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <array>
#include <cmath>

#include "framework/kernels/lanes.h"

namespace anymesh {
namespace {

constexpr int64_t kGrain = 1 << 14;

template <class T>
struct Coefficients {
  T beta1, beta2, eps, step_size, inverse_c2, decay, gradient_scale;
};

// The compiler vectorises these loops for each target; with contraction off (CMakeLists.txt) every
// width rounds alike.
template <class T>
[[gnu::always_inline]] inline void adamw_loop(T* __restrict weight, const T* __restrict gradient,
                                              T* __restrict exp_avg, T* __restrict exp_avg_sq,
                                              int64_t n, const Coefficients<T>& k) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * k.gradient_scale;
    const T m = exp_avg[i] * k.beta1 + g * (T(1) - k.beta1);
    const T v = exp_avg_sq[i] * k.beta2 + g * g * (T(1) - k.beta2);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] -= k.step_size * m / (std::sqrt(v * k.inverse_c2) + k.eps) + k.decay * weight[i];
  }
}

template <class T>
[[gnu::always_inline]] inline double squares_loop(const T* x, int64_t n) {
  std::array<double, 16> lanes{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t lane = 0; lane < 16; ++lane) {
      const auto value = static_cast<double>(x[i + static_cast<int64_t>(lane)]);
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (const double lane : lanes) sum += lane;
  return sum;
}

ANYMESH_WIDEST void adamw(float* w, const float* g, float* m, float* v, int64_t n,
                          const Coefficients<float>& k) {
  adamw_loop(w, g, m, v, n, k);
}
ANYMESH_WIDEST void adamw(double* w, const double* g, double* m, double* v, int64_t n,
                          const Coefficients<double>& k) {
  adamw_loop(w, g, m, v, n, k);
}
ANYMESH_WIDEST double squares(const float* x, int64_t n) { return squares_loop(x, n); }
ANYMESH_WIDEST double squares(const double* x, int64_t n) { return squares_loop(x, n); }

}  // namespace

void adamw_step(const torch::Tensor& weight, const torch::Tensor& gradient,
                const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                const AdamOptions& adam, int64_t step, double lr, double weight_decay,
                double gradient_scale) {
  const auto steps = static_cast<double>(step);
  const double c1 = 1 - std::pow(adam.beta1, steps), c2 = 1 - std::pow(adam.beta2, steps);
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "adamw_step", [&] {
    using T = scalar_t;
    const Coefficients<T> k{.beta1 = static_cast<T>(adam.beta1),
                            .beta2 = static_cast<T>(adam.beta2),
                            .eps = static_cast<T>(adam.eps),
                            .step_size = static_cast<T>(lr / c1),
                            .inverse_c2 = static_cast<T>(1 / c2),
                            .decay = static_cast<T>(lr * weight_decay),
                            .gradient_scale = static_cast<T>(gradient_scale)};
    T *w = weight.data_ptr<T>(), *m = exp_avg.data_ptr<T>(), *v = exp_avg_sq.data_ptr<T>();
    const T* g = gradient.const_data_ptr<T>();
    at::parallel_for(0, weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
      adamw(w + begin, g + begin, m + begin, v + begin, end - begin, k);
    });
  });
}

double sum_of_squares(const torch::Tensor& flat) {
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES(flat.scalar_type(), "sum_of_squares", [&] {
    const scalar_t* x = flat.const_data_ptr<scalar_t>();
    sum = at::parallel_reduce(
        0, flat.numel(), kGrain, 0.0,
        [&](int64_t begin, int64_t end, double partial) {
          return partial + squares(x + begin, end - begin);
        },
        std::plus<double>());
  });
  return sum;
}

}  // namespace anymesh
