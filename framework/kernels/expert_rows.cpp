#include "framework/kernels/expert_rows.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

namespace anymesh {
namespace {

// Calls work(token, T{}) for each token, on all threads.
template <class Work>
void for_tokens(const torch::Tensor& x, int64_t tokens, const Work& work) {
  constexpr int64_t kGrain = 16;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      torch::kHalf, torch::kBFloat16, x.scalar_type(), "expert_rows", [&] {
        at::parallel_for(0, tokens, kGrain, [&](int64_t token, int64_t end) {
          for (; token < end; ++token) work(token, scalar_t{});
        });
      });
}

}  // namespace

torch::Tensor rows_of_choices(const torch::Tensor& x, const torch::Tensor& order, int64_t chosen) {
  return x.index_select(0, order.floor_divide(chosen));
}

torch::Tensor sum_of_choices(const torch::Tensor& rows, const torch::Tensor& places,
                             const torch::Tensor& weights) {
  const int64_t tokens = places.size(0), chosen = places.size(1), h = rows.size(1);
  if (!rows.is_cpu()) {
    torch::Tensor each = rows.index_select(0, places.flatten()).view({tokens, chosen, h});
    if (weights.defined()) each = each * weights.unsqueeze(2);
    return each.sum(1);
  }
  const torch::Tensor out = at::empty({tokens, h}, rows.options());
  for_tokens(rows, tokens, [&]<class T>(int64_t token, T) {
    using Sum = at::opmath_type<T>;
    const int64_t* place = places.const_data_ptr<int64_t>() + token * chosen;
    T* y = out.data_ptr<T>() + token * h;
    thread_local std::vector<Sum> sums;
    sums.assign(static_cast<size_t>(h), 0);
    Sum* const sum = sums.data();
    for (int64_t k = 0; k < chosen; ++k) {
      const T* row = rows.const_data_ptr<T>() + place[k] * h;
      const Sum weight =
          weights.defined() ? Sum(weights.const_data_ptr<T>()[token * chosen + k]) : Sum(1);
      for (int64_t i = 0; i < h; ++i) sum[i] += weight * Sum(row[i]);
    }
    for (int64_t i = 0; i < h; ++i) y[i] = T(sum[i]);
  });
  return out;
}

std::pair<torch::Tensor, torch::Tensor> gradients_of_sum(const torch::Tensor& dy,
                                                         const torch::Tensor& rows,
                                                         const torch::Tensor& places,
                                                         const torch::Tensor& weights) {
  const int64_t tokens = places.size(0), chosen = places.size(1), h = rows.size(1);
  const torch::Tensor drows = at::empty_like(rows);
  if (!rows.is_cpu()) {
    const torch::Tensor each = rows.index_select(0, places.flatten()).view({tokens, chosen, h});
    drows.index_copy_(0, places.flatten(),
                      (dy.unsqueeze(1) * weights.unsqueeze(2)).view({tokens * chosen, h}));
    return {drows, (each * dy.unsqueeze(1)).sum(2)};
  }
  const torch::Tensor dweights = at::empty_like(weights);
  for_tokens(rows, tokens, [&]<class T>(int64_t token, T) {
    using Sum = at::opmath_type<T>;
    const T* g = dy.const_data_ptr<T>() + token * h;
    for (int64_t k = 0; k < chosen; ++k) {
      const int64_t choice = token * chosen + k, place = places.const_data_ptr<int64_t>()[choice];
      const T* row = rows.const_data_ptr<T>() + place * h;
      T* drow = drows.data_ptr<T>() + place * h;
      const Sum weight(weights.const_data_ptr<T>()[choice]);
      constexpr int64_t kLanes = 16;  // sums side by side, so that they fill vectors
      Sum sums[kLanes] = {};
      int64_t i = 0;
      for (; i + kLanes <= h; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const Sum gradient(g[i + lane]);
          sums[lane] += gradient * Sum(row[i + lane]);
          drow[i + lane] = T(weight * gradient);
        }
      }
      for (; i < h; ++i) {
        sums[0] += Sum(g[i]) * Sum(row[i]);
        drow[i] = T(weight * Sum(g[i]));
      }
      Sum sum = 0;
      for (const Sum lane : sums) sum += lane;
      dweights.data_ptr<T>()[choice] = T(sum);
    }
  });
  return {drows, dweights};
}

}  // namespace anymesh
