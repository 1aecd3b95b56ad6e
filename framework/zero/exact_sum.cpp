#include "framework/zero/exact_sum.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <mutex>

#include "framework/kernels/fixed_order.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

constexpr int kExponent = 50;
constexpr size_t kSquareParts = 4;

ANYMESH_INLINE double double_of(int64_t x) {  // rounds once; in vectors, where a cast is not
  const double high = static_cast<double>(static_cast<int32_t>(x >> 32)) * 0x1p32;
  const double low = std::bit_cast<double>((static_cast<uint64_t>(x) & 0xFFFFFFFF) |
                                           std::bit_cast<uint64_t>(0x1p52)) -
                     0x1p52;
  return high + low;
}

template <class Work>
void in_parts(int64_t n, const Work& work) {
  at::parallel_for(0, n, kGrain, work);
}

}  // namespace

void ExactSum::begin(double loss_scale, int64_t samples) {
  const auto limit = [](int64_t addends) {  // 2^61 / addends, rounded down to a power of two
    return 61 - static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(addends - 1)));
  };
  whole_.shift = part_.shift = kExponent - std::ilogb(loss_scale);
  whole_.limit = limit(samples);
  part_.limit = limit(samples * parts_ * rows_of_part_);
  overflowed_ = false;
}

void ExactSum::add(const torch::Tensor& x, const torch::Tensor& sums, bool replaces) {
  write(x, sums, whole_, replaces);
}

void ExactSum::add_product(const torch::Tensor& dy, const torch::Tensor& x,
                           const torch::Tensor& sums, bool replaces) {
  overflowed_ |= !fixed_dw_units(dy, x, whole_, replaces, sums.data_ptr<int64_t>());
}

void ExactSum::write(const torch::Tensor& x, const torch::Tensor& sums, Grid grid, bool replaces) {
  const torch::Tensor from =
      (x.scalar_type() == torch::kBFloat16 ? x : x.to(torch::kFloat)).contiguous();
  int64_t* const to = sums.data_ptr<int64_t>();
  std::atomic<bool> overflowed = false;
  const auto run = [&]<class T>(T) {
    const T* values = from.const_data_ptr<T>();
    in_parts(from.numel(), [&](int64_t begin, int64_t end) {
      if (!add_units(values + begin, grid, replaces, end - begin, to + begin)) overflowed = true;
    });
  };
  from.scalar_type() == torch::kFloat ? run(float{}) : run(c10::BFloat16{});
  overflowed_ |= overflowed;
}

torch::Tensor ExactSum::units(const torch::Tensor& x) {
  if (x.is_sparse())
    return at::zeros(x.sizes(), torch::kLong)
        .index_add_(0, x._indices()[0], units_of_parts(x._values()));
  const torch::Tensor out = torch::empty(x.sizes(), torch::kLong);
  write(x, out, whole_, /*replaces=*/true);
  return out;
}

torch::Tensor ExactSum::units_of_parts(const torch::Tensor& x) {
  const torch::Tensor out = torch::empty(x.sizes(), torch::kLong);
  write(x, out, part_, /*replaces=*/true);
  return out;
}

torch::Tensor ExactSum::sum_of_parts(const torch::Tensor& parts) {
  const torch::Tensor from = parts.to(torch::kFloat).contiguous(),
                      out = torch::empty(parts.sizes().slice(1), torch::kLong);
  const int64_t n = out.numel();
  std::atomic<bool> overflowed = false;
  at::parallel_for(0, n, kGrain / from.size(0) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = 0; p < from.size(0); ++p) {
      if (!add_units(from.const_data_ptr<float>() + p * n + begin, part_, /*replaces=*/p == 0,
                     end - begin, out.data_ptr<int64_t>() + begin))
        overflowed = true;
    }
  });
  overflowed_ |= overflowed;
  return out;
}

void ExactSum::finish(const torch::Tensor& sums, const torch::Tensor& gradient) const {
  const int64_t* const from = sums.const_data_ptr<int64_t>();
  float* const to = gradient.data_ptr<float>();
  const double unit = std::ldexp(1.0, -whole_.shift);
  in_parts(sums.numel(), [&](int64_t begin, int64_t end) {
    with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
      for (int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(double_of(from[i]) * unit);
    });
  });
}

torch::Tensor ExactSum::square_sum(const std::vector<torch::Tensor>& gradients) const {
  // Adding and taking away 1.5 * 2^52 steps rounds to a whole number of steps. A double adds up to
  // 2^53 steps without rounding: 2^32 squares of gradients of 2^12, and as many rests.
  constexpr std::array<double, kSquareParts> kSteps = {0x1p4, 0x1p-18, 0x1p-40, 0x1p-62};
  const torch::Tensor result = at::zeros({kSquareParts}, torch::kDouble);
  auto* const sums = result.data_ptr<double>();
  std::mutex mutex;
  const double factor = std::ldexp(1.0, whole_.shift - kExponent);
  for (const torch::Tensor& tensor : gradients) {
    const float* const x = tensor.const_data_ptr<float>();
    in_parts(tensor.numel(), [&](int64_t begin, int64_t end) {
      const auto own = with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
        constexpr int kWide = 8;
        double parts[kSquareParts][kWide] = {};
        const auto add = [&](int lane, float value) ANYMESH_INLINE_LAMBDA {
          const double scaled = static_cast<double>(value) * factor;
          double rest = scaled * scaled;
          for (size_t level = 0; level < kSteps.size(); ++level) {
            const double big = 0x1.8p52 * kSteps[level], rounded = (rest + big) - big;
            parts[level][lane] += rounded;
            rest -= rounded;
          }
        };
        int64_t i = begin;
        for (; i + kWide <= end; i += kWide)
          for (int lane = 0; lane < kWide; ++lane) add(lane, x[i + lane]);
        for (; i < end; ++i) add(0, x[i]);
        std::array<double, kSquareParts> total{};
        for (size_t level = 0; level < kSquareParts; ++level)
          for (const double part : parts[level]) total[level] += part;
        return total;
      });
      const std::lock_guard lock(mutex);
      for (size_t level = 0; level < kSquareParts; ++level) sums[level] += own[level];
    });
  }
  if (overflowed_) sums[0] = INFINITY;
  return result.div_(factor * factor);
}

}  // namespace anymesh
