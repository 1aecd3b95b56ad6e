#include "framework/kernels/rows.h"

#include <cmath>

#include "framework/lanes.h"

namespace anymesh {

static_assert(kRowMultiple == kLanes);

namespace {

template <class Lanes, bool kFactors, class T>
ANYMESH_INLINE float weights_loop(const float* row, float scale, float shift, const float* factors,
                                  int64_t width, T* out) {
  Lanes total;
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = exp(load<Lanes>(row + j) * scale - shift);
    total += weight;
    store(out + j, kFactors ? weight * load<Lanes>(factors + j) : weight);
  }
  return sum(total);
}

template <class Lanes, bool kFactors>
ANYMESH_INLINE float meet_loop(float* row, float scale, float shift, const float* factors,
                               float* dweights, int64_t width) {
  Lanes total;
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = exp(load<Lanes>(row + j) * scale - shift);
    Lanes dweight = load<Lanes>(dweights + j);
    if (kFactors) {
      dweight *= load<Lanes>(factors + j);
      store(dweights + j, dweight);
    }
    store(row + j, weight);
    total += weight * dweight;
  }
  return sum(total);
}

template <class Lanes, bool kFactors, class T>
ANYMESH_INLINE void gradient_loop(const float* row, const float* dweights, float mean, float scale,
                                  const float* factors, int64_t width, T* dscores, T* dropped) {
  for (int64_t j = 0; j < width; j += kLanes) {
    const Lanes weight = load<Lanes>(row + j);
    store(dscores + j, weight * ((load<Lanes>(dweights + j) - mean) * scale));
    store(dropped + j, kFactors ? weight * load<Lanes>(factors + j) : weight);
  }
}

}  // namespace

template <class T>
void scaled(const float* row, float scale, int64_t width, T* out) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    for (int64_t j = 0; j < width; j += kLanes) store(out + j, load<Lanes>(row + j) * scale);
  });
}

void added(const float* a, const c10::BFloat16* b, int64_t width, c10::BFloat16* out) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    for (int64_t j = 0; j < width; j += kLanes)
      store(out + j, load<Lanes>(a + j) + load<Lanes>(b + j));
  });
}

float greatest(const float* row, int64_t width) {
  return in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    Lanes most = -INFINITY;
    for (int64_t j = 0; j < width; j += kLanes) most = max(most, load<Lanes>(row + j));
    return max(most);
  });
}

template <class T>
float weights(const float* row, float scale, float shift, const float* factors, int64_t width,
              T* out) {
  return in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    return factors ? weights_loop<Lanes, true>(row, scale, shift, factors, width, out)
                   : weights_loop<Lanes, false>(row, scale, shift, factors, width, out);
  });
}

float meet(float* row, float scale, float shift, const float* factors, float* dweights,
           int64_t width) {
  return in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    return factors ? meet_loop<Lanes, true>(row, scale, shift, factors, dweights, width)
                   : meet_loop<Lanes, false>(row, scale, shift, factors, dweights, width);
  });
}

template <class T>
void gradient(const float* row, const float* dweights, float mean, float scale,
              const float* factors, int64_t width, T* dscores, T* dropped) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    if (factors) {
      gradient_loop<Lanes, true>(row, dweights, mean, scale, factors, width, dscores, dropped);
    } else {
      gradient_loop<Lanes, false>(row, dweights, mean, scale, factors, width, dscores, dropped);
    }
  });
}

template void scaled(const float*, float, int64_t, float*);
template void scaled(const float*, float, int64_t, c10::BFloat16*);
template float weights(const float*, float, float, const float*, int64_t, float*);
template float weights(const float*, float, float, const float*, int64_t, c10::BFloat16*);
template void gradient(const float*, const float*, float, float, const float*, int64_t, float*,
                       float*);
template void gradient(const float*, const float*, float, float, const float*, int64_t,
                       c10::BFloat16*, c10::BFloat16*);

}  // namespace anymesh
