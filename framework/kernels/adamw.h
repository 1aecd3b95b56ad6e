#pragma once

#include <cmath>

// The CPU's loop (adamw_sweeps.cpp) and the GPU's kernel (cuda/optimizer.cu) share this one
// function. Both are compiled without contraction, so they write the same bits.
#ifdef __CUDACC__
#define ANYMESH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ANYMESH_HOST_DEVICE [[gnu::always_inline]] inline
#endif

namespace anymesh {

// The per-step constants of AdamW.
template <class T>
struct AdamwCoefficients {
  T beta1, beta2, eps, step_size, inverse_c2, decay, gradient_scale;

  template <class U>
  AdamwCoefficients<U> as() const {
    return {static_cast<U>(beta1),         static_cast<U>(beta2),      static_cast<U>(eps),
            static_cast<U>(step_size),     static_cast<U>(inverse_c2), static_cast<U>(decay),
            static_cast<U>(gradient_scale)};
  }
};

template <class T>
ANYMESH_HOST_DEVICE void adamw_element(T& weight, T gradient, T& exp_avg, T& exp_avg_sq,
                                       const AdamwCoefficients<T>& k) {
  const T g = gradient * k.gradient_scale;
  const T m = exp_avg * k.beta1 + g * (T(1) - k.beta1);
  const T v = exp_avg_sq * k.beta2 + g * g * (T(1) - k.beta2);
  exp_avg = m;
  exp_avg_sq = v;
  weight -= k.step_size * m / (std::sqrt(v * k.inverse_c2) + k.eps) + k.decay * weight;
}

}  // namespace anymesh
