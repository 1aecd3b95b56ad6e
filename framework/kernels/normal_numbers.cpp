#include "framework/kernels/normal_numbers.h"

#include <cmath>
#include <numbers>

#include "framework/kernels/philox.h"

namespace anymesh {
namespace {

// Standard normal number `index` of a stream, by the Box-Muller transform; u is never 0.
double normal_at(int64_t index, uint64_t key) {
  const PhiloxBlock r =
      philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}, key);
  const double u = (r[0] + 1.0) / 4294967296.0, v = r[1] / 4294967296.0;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace

void normal_numbers(const Slice& slice, int64_t first, int64_t count, double mean, double deviation,
                    uint64_t key, double* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    const int64_t index = at / slice.width * slice.stride + slice.offset + at % slice.width;
    out[i] = deviation == 0 ? mean : deviation * normal_at(index, key);
  }
}

}  // namespace anymesh
