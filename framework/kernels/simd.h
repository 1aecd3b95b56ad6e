// Loops over floats in the machine's widest vectors, with GCC's and clang's vector extension. A
// loop is written once, over sixteen lanes as one value, and compiled for several instruction sets:
//
//   template <class Lanes>
//   ANYMESH_INLINE void double_loop(float* x, int64_t n) {  // n: a multiple of kLanes
//     for (int64_t i = 0; i < n; i += kLanes) store(x + i, 2 * load<Lanes>(x + i));
//   }
//   with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA { double_loop<Lanes>(x, n); });
//
// Code inlined there may use all of the CPU's instructions, including loops without lanes. Captures
// are copies, so no store through a pointer can change them.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <limits>

#define ANYMESH_INLINE_LAMBDA __attribute__((always_inline))
#define ANYMESH_INLINE inline __attribute__((always_inline))

namespace anymesh {

constexpr int64_t kLanes = 16;
constexpr int64_t kGrain = 1 << 14;  // the fewest elements worth a thread of at::parallel_for

// Sixteen floats, in vectors that fit registers, because compilers keep wider ones in memory.
template <int kVectorBytes>
struct SixteenLanes {
  // One vector of floats, of their bits, and of their upper halves.
  using Floats [[gnu::vector_size(kVectorBytes)]] = float;
  using Bits [[gnu::vector_size(kVectorBytes)]] = int32_t;
  using Halves [[gnu::vector_size(kVectorBytes / 2)]] = uint16_t;
  static constexpr int kPerVector = kVectorBytes / 4, kVectors = kLanes / kPerVector;

  Floats vectors[kVectors]{};

  SixteenLanes() = default;
  ANYMESH_INLINE SixteenLanes(float x) {         // in all lanes
    for (Floats& v : vectors) v = x - Floats{};  // folds to a broadcast
  }

  // Applies f to every vector, or to every pair of vectors.
  template <class F>
  ANYMESH_INLINE friend SixteenLanes map_vectors(SixteenLanes a, const F& f) {
    for (int i = 0; i < kVectors; ++i) a.vectors[i] = f(a.vectors[i]);
    return a;
  }
  template <class F>
  ANYMESH_INLINE friend SixteenLanes map_vectors(SixteenLanes a, SixteenLanes b, const F& f) {
    for (int i = 0; i < kVectors; ++i) a.vectors[i] = f(a.vectors[i], b.vectors[i]);
    return a;
  }

  ANYMESH_INLINE friend SixteenLanes operator+(SixteenLanes a, SixteenLanes b) {
    return map_vectors(a, b, [](Floats x, Floats y) ANYMESH_INLINE_LAMBDA { return x + y; });
  }
  ANYMESH_INLINE friend SixteenLanes operator-(SixteenLanes a, SixteenLanes b) {
    return map_vectors(a, b, [](Floats x, Floats y) ANYMESH_INLINE_LAMBDA { return x - y; });
  }
  ANYMESH_INLINE friend SixteenLanes operator*(SixteenLanes a, SixteenLanes b) {
    return map_vectors(a, b, [](Floats x, Floats y) ANYMESH_INLINE_LAMBDA { return x * y; });
  }
  ANYMESH_INLINE friend SixteenLanes operator/(SixteenLanes a, SixteenLanes b) {
    return map_vectors(a, b, [](Floats x, Floats y) ANYMESH_INLINE_LAMBDA { return x / y; });
  }
  ANYMESH_INLINE friend SixteenLanes max(SixteenLanes a, SixteenLanes b) {
    return map_vectors(a, b,
                       [](Floats x, Floats y) ANYMESH_INLINE_LAMBDA { return x > y ? x : y; });
  }
  ANYMESH_INLINE friend SixteenLanes operator-(SixteenLanes a) {
    return map_vectors(a, [](Floats x) ANYMESH_INLINE_LAMBDA { return -x; });
  }
  ANYMESH_INLINE SixteenLanes& operator+=(SixteenLanes b) { return *this = *this + b; }
  ANYMESH_INLINE SixteenLanes& operator*=(SixteenLanes b) { return *this = *this * b; }
};

template <class Lanes>
ANYMESH_INLINE Lanes load(const float* p) {
  Lanes x;
  for (auto& vector : x.vectors) {
    std::memcpy(&vector, p, sizeof vector);
    p += Lanes::kPerVector;
  }
  return x;
}
template <class Lanes>
ANYMESH_INLINE void store(float* p, const Lanes& x) {
  for (const auto& vector : x.vectors) {
    std::memcpy(p, &vector, sizeof vector);
    p += Lanes::kPerVector;
  }
}

template <class Lanes>
ANYMESH_INLINE Lanes load(const c10::BFloat16* p) {
  Lanes x;
  for (auto& vector : x.vectors) {
    typename Lanes::Halves halves;
    std::memcpy(&halves, p, sizeof halves);
    vector = (typename Lanes::Floats)(__builtin_convertvector(halves, typename Lanes::Bits) << 16);
    p += Lanes::kPerVector;
  }
  return x;
}
// Rounds to nearest, ties to even. NaNs are not handled.
template <class Lanes>
ANYMESH_INLINE void store(c10::BFloat16* p, const Lanes& x) {
  for (const auto& vector : x.vectors) {
    const auto bits = (typename Lanes::Bits)vector;
    const auto halves =
        __builtin_convertvector((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, typename Lanes::Halves);
    std::memcpy(p, &halves, sizeof halves);
    p += Lanes::kPerVector;
  }
}

// Loads and stores the first `count` lanes; loads `rest` for the others.
template <class Lanes, class T>
ANYMESH_INLINE Lanes load_some(const T* p, int64_t count, float rest = 0) {
  if (count == kLanes) return load<Lanes>(p);
  T some[kLanes];
  for (T& x : some) x = static_cast<T>(rest);
  for (int64_t i = 0; i < count; ++i) some[i] = p[i];
  return load<Lanes>(some);
}
template <class Lanes, class T>
ANYMESH_INLINE void store_some(T* p, const Lanes& x, int64_t count) {
  if (count == kLanes) return store(p, x);
  T some[kLanes];
  store(some, x);
  for (int64_t i = 0; i < count; ++i) p[i] = some[i];
}

// e^x to two units in the last place; 0 below -87, infinite above 88, NaN for NaN. Computed as 2^n
// * e^r with n whole and |r| <= ln 2 / 2, where e^r is a series.
template <int kVectorBytes>
ANYMESH_INLINE SixteenLanes<kVectorBytes> exp(SixteenLanes<kVectorBytes> lanes) {
  using Floats = typename SixteenLanes<kVectorBytes>::Floats;
  using Bits = typename SixteenLanes<kVectorBytes>::Bits;
  return map_vectors(lanes, [](Floats x) ANYMESH_INLINE_LAMBDA {
    const Floats big = Floats{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats n = (x * 1.44269504f + big) - big;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats e = Floats{} + 1.f / 5040;
    e = e * r + 1.f / 720;
    e = e * r + 1.f / 120;
    e = e * r + 1.f / 24;
    e = e * r + 1.f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.f;
    e = e * r + 1.f;
    const Bits power = (__builtin_convertvector(n, Bits) + 127) << 23;
    const Floats infinity = Floats{} + std::numeric_limits<float>::infinity();
    const Floats y = x > 88.f ? infinity : e * (Floats)power;
    return x < -87.f ? Floats{} : y;
  });
}

// Folds f over the lanes, always in the same order.
template <class Lanes, class F>
ANYMESH_INLINE float reduce(const Lanes& x, const F& f) {
  float lanes[kLanes];
  store(lanes, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = f(lanes[i], lanes[i + width]);
  return lanes[0];
}
template <class Lanes>
ANYMESH_INLINE float sum(const Lanes& x) {
  return reduce(x, [](float a, float b) ANYMESH_INLINE_LAMBDA { return a + b; });
}
template <class Lanes>
ANYMESH_INLINE float max(const Lanes& x) {
  return reduce(x, [](float a, float b) ANYMESH_INLINE_LAMBDA { return a > b ? a : b; });
}

#if defined(__x86_64__)
template <class Work>
__attribute__((target("arch=x86-64-v4"))) auto call_in_avx512(Work work) {
  return work(SixteenLanes<64>());
}
template <class Work>
__attribute__((target("arch=x86-64-v3"))) auto call_in_avx2(Work work) {
  return work(SixteenLanes<32>());
}
#endif

// Calls work(Lanes), inlined, with the widest vectors that the CPU has.
template <class Work>
auto with_widest_simd(Work work) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return call_in_avx512(work);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    return call_in_avx2(work);
#endif
  return work(SixteenLanes<16>());
}

// Calls work(Lanes, i, count) for n elements, kLanes at a time.
template <class Work>
ANYMESH_INLINE void for_lanes(int64_t n, const Work& work) {
  with_widest_simd([=]<class Lanes>(Lanes lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; i += kLanes) work(lanes, i, n - i < kLanes ? n - i : kLanes);
  });
}

}  // namespace anymesh
