#include "framework/comm/fold.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace anymesh {
namespace {

constexpr int64_t kBlock = 1024;         // elements of the sum that stay in the nearest cache
constexpr int64_t kGrain = 64 * kBlock;  // the fewest worth a thread

template <class T>
T greater(T a, T b) {  // returns a NaN if there is one
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a)) return a;
  return a > b ? a : b;
}

// Folds a block of at most kBlock elements, from element `begin` on.
template <class T, class Out>
void fold_block(const std::vector<const std::byte*>& parts, int64_t begin, int64_t count,
                ReduceOp op, Out* out) {
  using Sum = at::opmath_type<T>;
  Sum sum[kBlock];
  const auto part = [&](size_t r) { return reinterpret_cast<const T*>(parts[r]) + begin; };
  const T* first = part(0);
  for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(first[i]);
  for (size_t r = 1; r < parts.size(); ++r) {
    const T* x = part(r);
    if (op == ReduceOp::Sum) {
      for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(x[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] = greater(sum[i], static_cast<Sum>(x[i]));
    }
  }
  for (int64_t i = 0; i < count; ++i) out[begin + i] = static_cast<Out>(sum[i]);
}

}  // namespace

void fold(const std::vector<const std::byte*>& parts, int64_t n, torch::Dtype dtype, ReduceOp op,
          std::byte* out, torch::Dtype out_dtype) {
  const auto fold_all = [&]<class T, class Out>(T, Out) {
    at::parallel_for(0, n, kGrain, [&](int64_t from, int64_t to) {
      for (int64_t begin = from; begin < to; begin += kBlock)
        fold_block<T>(parts, begin, std::min(kBlock, to - begin), op, reinterpret_cast<Out*>(out));
    });
  };
  AT_DISPATCH_ALL_TYPES_AND2(torch::kHalf, torch::kBFloat16, dtype, "fold", [&] {
    using T = scalar_t;
    if (out_dtype == dtype) return fold_all(T{}, T{});
    AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, out_dtype, "fold",
                                    [&] { fold_all(T{}, scalar_t{}); });
  });
}

}  // namespace anymesh
