#include "framework/kernels/attention_rows.h"

#include <cmath>

#include "framework/lanes.h"

namespace anymesh {
namespace {

template <class T, bool kFactors>
ANYMESH_INLINE float weights_loop(const float* row, float scale, float shift, const float* factors,
                                  int64_t width, T* out) {
  Lanes total{};
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = exp(load(row + j) * scale - shift);
    total += weight;
    store(out + j, kFactors ? weight * load(factors + j) : weight);
  }
  return sum(total);
}

template <class T>
ANYMESH_INLINE float weights_of(const float* row, float scale, float shift, const float* factors,
                                int64_t width, T* out) {
  return factors ? weights_loop<T, true>(row, scale, shift, factors, width, out)
                 : weights_loop<T, false>(row, scale, shift, factors, width, out);
}

template <bool kFactors>
ANYMESH_INLINE float meet_loop(float* row, float scale, float shift, const float* factors,
                               float* dweights, int64_t width) {
  Lanes total{};
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = exp(load(row + j) * scale - shift);
    Lanes dweight = load(dweights + j);
    if (kFactors) {
      dweight *= load(factors + j);
      store(dweights + j, dweight);
    }
    store(row + j, weight);
    total += weight * dweight;
  }
  return sum(total);
}

template <class T, bool kFactors>
ANYMESH_INLINE void gradient_loop(const float* row, const float* dweights, float mean, float scale,
                                  const float* factors, int64_t width, T* dscores, T* dropped) {
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = load(row + j);
    store(dscores + j, weight * ((load(dweights + j) - mean) * scale));
    store(dropped + j, kFactors ? weight * load(factors + j) : weight);
  }
}

template <class T>
ANYMESH_INLINE void gradient_of(const float* row, const float* dweights, float mean, float scale,
                                const float* factors, int64_t width, T* dscores, T* dropped) {
  if (factors)
    return gradient_loop<T, true>(row, dweights, mean, scale, factors, width, dscores, dropped);
  gradient_loop<T, false>(row, dweights, mean, scale, factors, width, dscores, dropped);
}

}  // namespace

ANYMESH_WIDEST float greatest(const float* row, int64_t width) {
  Lanes most = all(-INFINITY);
  for (int64_t j = 0; j < width; j += kLanes) most = max(most, load(row + j));
  return max(most);
}

ANYMESH_WIDEST float weights(const float* row, float scale, float shift, const float* factors,
                             int64_t width, float* out) {
  return weights_of(row, scale, shift, factors, width, out);
}

ANYMESH_WIDEST float weights(const float* row, float scale, float shift, const float* factors,
                             int64_t width, c10::BFloat16* out) {
  return weights_of(row, scale, shift, factors, width, out);
}

ANYMESH_WIDEST float meet(float* row, float scale, float shift, const float* factors,
                          float* dweights, int64_t width) {
  return factors ? meet_loop<true>(row, scale, shift, factors, dweights, width)
                 : meet_loop<false>(row, scale, shift, factors, dweights, width);
}

ANYMESH_WIDEST void gradient(const float* row, const float* dweights, float mean, float scale,
                             const float* factors, int64_t width, float* dscores, float* dropped) {
  gradient_of(row, dweights, mean, scale, factors, width, dscores, dropped);
}

ANYMESH_WIDEST void gradient(const float* row, const float* dweights, float mean, float scale,
                             const float* factors, int64_t width, c10::BFloat16* dscores,
                             c10::BFloat16* dropped) {
  gradient_of(row, dweights, mean, scale, factors, width, dscores, dropped);
}

}  // namespace anymesh
