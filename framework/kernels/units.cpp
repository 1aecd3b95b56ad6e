#include "framework/kernels/units.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;

ANYMESH_INLINE uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
ANYMESH_INLINE uint32_t bits_of(c10::BFloat16 x) { return uint32_t{x.x} << 16; }

ANYMESH_INLINE int64_t whole_of(double x) {  // rounds |x| < 2^51
  constexpr double kBig = 0x1.8p52;
  return std::bit_cast<int64_t>(x + kBig) - std::bit_cast<int64_t>(kBig);
}

// Sets a bit of `beyond` if |x| has at least the bits `most`, and returns 0. A cast from double is
// not in all vectors, so the two halves of an integer are rounded by themselves.
template <class T>
ANYMESH_INLINE int64_t units_of(T x, double unit, uint32_t most, uint32_t& beyond) {
  const uint32_t bits = bits_of(x), large = (bits & 0x7FFFFFFF) >= most ? ~uint32_t{0} : 0;
  beyond |= large;
  const double units = static_cast<double>(std::bit_cast<float>(bits & ~large)) * unit,
               high = (units + 0x1.8p84) - 0x1.8p84;  // a multiple of 2^32
  return whole_of(high * 0x1p-32) * (int64_t{1} << 32) + whole_of(units - high);
}

}  // namespace

template <class T>
bool add_units(const T* x, Grid grid, bool replaces, int64_t n, int64_t* units) {
  const double unit = std::ldexp(1.0, grid.shift);
  // The bits of 2^(limit - shift) in fp32, which has no numbers from 2^128 on.
  const uint32_t most =
      std::min(static_cast<uint32_t>(grid.limit - grid.shift + 127) << 23, kInfinity);
  return with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
    uint32_t beyond = 0;
    if (replaces) {
      for (int64_t i = 0; i < n; ++i) units[i] = units_of(x[i], unit, most, beyond);
    } else {
      for (int64_t i = 0; i < n; ++i) units[i] += units_of(x[i], unit, most, beyond);
    }
    return beyond == 0;
  });
}

template bool add_units(const float*, Grid, bool, int64_t, int64_t*);
template bool add_units(const c10::BFloat16*, Grid, bool, int64_t, int64_t*);

}  // namespace anymesh
