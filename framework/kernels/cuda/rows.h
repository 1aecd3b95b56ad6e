// For kernels over rows, beside simt.h.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/simt.h"

namespace anymesh {

template <class T>
__device__ const T* row_of(const void* rows, int64_t width, int64_t row = blockIdx.x) {
  return static_cast<const T*>(rows) + row * width;
}
template <class T>
__device__ T* row_of(void* rows, int64_t width, int64_t row = blockIdx.x) {
  return static_cast<T*>(rows) + row * width;
}

inline bool are_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
}

// Calls work(Type<T>, Width<N>) if there are rows. N elements are a whole pack if rows of `columns`
// begin at whole packs, otherwise N is 1.
template <class Rows, class Work>
void of_rows(const Rows& r, int64_t columns, std::initializer_list<const void*> pointers,
             const Work& work) {
  if (r.rows == 0) return;
  of_type(r.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, double>) {
      throw std::logic_error("no kernel over rows for Double");
    } else {
      constexpr int kPack = 16 / sizeof(T);
      if (columns % kPack == 0 && are_aligned(pointers)) return work(type, Width<kPack>());
      work(type, Width<1>());
    }
  });
}

}  // namespace anymesh
