// Loops over floats that compilers turn into whatever vectors the machine has: sixteen lanes as one
// value, in GCC's and clang's vector extension. Functions marked ANYMESH_WIDEST are compiled for
// several instruction sets and chosen from at start.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#define ANYMESH_WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ANYMESH_WIDEST
#endif
#define ANYMESH_INLINE [[gnu::always_inline]] inline

namespace anymesh {

constexpr int64_t kLanes = 16;
constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread of at::parallel_for
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = int32_t __attribute__((vector_size(64)));
using HalfLanes = uint16_t __attribute__((vector_size(32)));

ANYMESH_INLINE Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
ANYMESH_INLINE void store(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }

ANYMESH_INLINE Lanes load(const c10::BFloat16* p) {
  HalfLanes bits;
  std::memcpy(&bits, p, sizeof bits);
  return (Lanes)(__builtin_convertvector(bits, IntLanes) << 16);
}
// Rounds to the nearest, to even on a tie. NaNs are not looked after.
ANYMESH_INLINE void store(c10::BFloat16* p, Lanes x) {
  const auto bits = (IntLanes)x;
  const HalfLanes half =
      __builtin_convertvector((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, HalfLanes);
  std::memcpy(p, &half, sizeof half);
}

ANYMESH_INLINE Lanes all(float x) { return Lanes{} + x; }
ANYMESH_INLINE Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }

// e^x to two units in the last place, 0 below -87, infinite above 88, NaN of NaN. As 2^n * e^r with
// n whole and |r| <= ln 2 / 2, e^r by its series.
ANYMESH_INLINE Lanes exp(Lanes x) {
  const Lanes big = all(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Lanes n = (x * 1.44269504f + big) - big;
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes e = all(1.f / 5040);
  e = e * r + 1.f / 720;
  e = e * r + 1.f / 120;
  e = e * r + 1.f / 24;
  e = e * r + 1.f / 6;
  e = e * r + 0.5f;
  e = e * r + 1.f;
  e = e * r + 1.f;
  const IntLanes power = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  const Lanes y = x > all(88.f) ? all(std::numeric_limits<float>::infinity()) : e * (Lanes)power;
  return x < all(-87.f) ? Lanes{} : y;
}

// Of the lanes, always in the same order.
ANYMESH_INLINE float sum(Lanes x) {
  float parts[kLanes];
  store(parts, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}
ANYMESH_INLINE float max(Lanes x) {
  float parts[kLanes];
  store(parts, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      parts[i] = parts[i] > parts[i + width] ? parts[i] : parts[i + width];
  return parts[0];
}

}  // namespace anymesh
