#include "framework/kernels/row_ops.h"

#include <cmath>
#include <type_traits>

#include "framework/kernels/simd.h"

namespace anymesh {

static_assert(kRowMultiple == kLanes);

namespace {

// Calls work(Lanes, std::true_type) if there are factors, else work(Lanes, std::false_type).
template <class Work>
ANYMESH_INLINE auto with_factors(const float* factors, Work work) {
  return with_widest_simd([=](auto lanes) ANYMESH_INLINE_LAMBDA {
    return factors ? work(lanes, std::true_type()) : work(lanes, std::false_type());
  });
}

}  // namespace

template <class T>
void scale_row(const float* row, float scale, int64_t width, T* out) {
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t j = 0; j < width; j += kLanes) store(out + j, load<Lanes>(row + j) * scale);
  });
}

template <class T>
void add_row(const T* row, int64_t width, float* out) {
  for_lanes(width, [=]<class Lanes>(Lanes, int64_t j, int64_t n) ANYMESH_INLINE_LAMBDA {
    store_some(out + j, load_some<Lanes>(out + j, n) + load_some<Lanes>(row + j, n), n);
  });
}

template <class T>
void add_bias_row(const float* row, const T* bias, int64_t width, T* out) {
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t j = 0; j < width; j += kLanes)
      store(out + j, load<Lanes>(row + j) + load<Lanes>(bias + j));
  });
}

float row_max(const float* row, int64_t width) {
  return with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    Lanes maxima = -INFINITY;
    for (int64_t j = 0; j < width; j += kLanes) maxima = max(maxima, load<Lanes>(row + j));
    return max(maxima);
  });
}

template <class T>
float exp_row(const float* row, float scale, float shift, const float* factors, int64_t width,
              T* out) {
  return with_factors(factors, [=]<class Lanes>(Lanes, auto has_factors) ANYMESH_INLINE_LAMBDA {
    Lanes total;
    for (int64_t j = 0; j < width; j += kLanes) {
      const Lanes weight = exp(load<Lanes>(row + j) * scale - shift);
      total += weight;
      store(out + j, has_factors ? weight * load<Lanes>(factors + j) : weight);
    }
    return sum(total);
  });
}

float softmax_backward_sum(float* row, float scale, float shift, const float* factors,
                           float* dweights, int64_t width) {
  return with_factors(factors, [=]<class Lanes>(Lanes, auto has_factors) ANYMESH_INLINE_LAMBDA {
    Lanes total;
    for (int64_t j = 0; j < width; j += kLanes) {
      const Lanes weight = exp(load<Lanes>(row + j) * scale - shift);
      Lanes dweight = load<Lanes>(dweights + j);
      if (has_factors) {
        dweight *= load<Lanes>(factors + j);
        store(dweights + j, dweight);
      }
      store(row + j, weight);
      total += weight * dweight;
    }
    return sum(total);
  });
}

template <class T>
void softmax_backward_row(const float* row, const float* dweights, float mean, float scale,
                          const float* factors, int64_t width, T* dscores, T* dropped) {
  with_factors(factors, [=]<class Lanes>(Lanes, auto has_factors) ANYMESH_INLINE_LAMBDA {
    for (int64_t j = 0; j < width; j += kLanes) {
      const Lanes weight = load<Lanes>(row + j);
      store(dscores + j, weight * ((load<Lanes>(dweights + j) - mean) * scale));
      store(dropped + j, has_factors ? weight * load<Lanes>(factors + j) : weight);
    }
  });
}

template void scale_row(const float*, float, int64_t, float*);
template void scale_row(const float*, float, int64_t, c10::BFloat16*);
template void add_row(const float*, int64_t, float*);
template void add_row(const c10::BFloat16*, int64_t, float*);
template void add_bias_row(const float*, const float*, int64_t, float*);
template void add_bias_row(const float*, const c10::BFloat16*, int64_t, c10::BFloat16*);
template float exp_row(const float*, float, float, const float*, int64_t, float*);
template float exp_row(const float*, float, float, const float*, int64_t, c10::BFloat16*);
template void softmax_backward_row(const float*, const float*, float, float, const float*, int64_t,
                                   float*, float*);
template void softmax_backward_row(const float*, const float*, float, float, const float*, int64_t,
                                   c10::BFloat16*, c10::BFloat16*);

}  // namespace anymesh
