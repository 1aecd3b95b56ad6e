#include "framework/kernels/block_gemm.h"

#if defined(__x86_64__)
#define USE_FBGEMM
#endif
#include <ATen/native/CPUBlas.h>
#include <ATen/native/cpu/utils.h>

#include <algorithm>
#include <type_traits>

#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

namespace blas = at::native::cpublas;

void interleave(const uint16_t* even, const uint16_t* odd, int64_t n, uint32_t* pairs) {
  with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) pairs[i] = even[i] | uint32_t{odd[i]} << 16;
  });
}

constexpr int64_t kRowsAhead = 16;  // rows to prefetch ahead

// Prefetches rows that lie too far apart for the CPU to foresee them.
template <class T>
void prefetch_rows(const T* x, int64_t stride, int64_t rows, int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(x + i * stride + j);
}

// Whether there is AVX512-BF16, and LibTorch was built with oneDNN's brgemm.
bool has_bf16_brgemm() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  constexpr int64_t n = 16, k = 2;
  const c10::BFloat16 a[k]{}, b[k * n]{};
  float c[n];
  try {
    blas::brgemm(1, n, k, k, n, n, false, a, b, c, true);
    blas::brgemm_release(true);
    return true;
  } catch (const c10::Error&) {
  }
#endif
  return false;
}

// A type of T's width that the transposition's kernel supports.
template <class T>
using SameWidth = std::conditional_t<std::is_same_v<T, float>, float, uint16_t>;

}  // namespace

template <class T>
void transpose(const T* in, int64_t in_stride, int64_t m, int64_t n, T* out, int64_t out_stride) {
  for (int64_t i = 0; i < m; i += kRowsAhead) {
    const int64_t rows = std::min(kRowsAhead, m - i), next = i + rows;
    prefetch_rows(in + next * in_stride, in_stride, std::min(kRowsAhead, m - next), n);
    at::native::utils::transpose(rows, n, reinterpret_cast<const SameWidth<T>*>(in + i * in_stride),
                                 in_stride, reinterpret_cast<SameWidth<T>*>(out + i), out_stride);
  }
}

bool has_amx() {
  static const bool amx = blas::could_pack(at::kBFloat16);
  return amx;
}

// The units need B's rows in pairs, element by element.
template <class T>
bool BlockGemm<T>::has_matrix_units() {
  if constexpr (std::is_same_v<T, float>) return false;
  static const bool units = has_amx() || has_bf16_brgemm();
  return units;
}

template <class T>
Packed<T> BlockGemm<T>::pack(const T* b, int64_t stride, int64_t k, int64_t n, T* room) {
  if (!has_matrix_units()) return {b, kPackedColumns, stride};
  T* to = room;
  for (int64_t j = 0; j < n; j += kPackedColumns, to += k * kPackedColumns) {
    const int64_t width = std::min(kPackedColumns, n - j);
    for (int64_t i = 0; i < k; i += 2) {
      const auto* row = reinterpret_cast<const uint16_t*>(b + i * stride + j);
      if (i + kRowsAhead < k) prefetch_rows(b + (i + kRowsAhead) * stride + j, stride, 2, width);
      interleave(row, row + stride, width, reinterpret_cast<uint32_t*>(to + i * width));
    }
  }
  return {room, k * kPackedColumns, 0};
}

template <class T>
Packed<T> BlockGemm<T>::pack_transposed(const T* bt, int64_t stride, int64_t k, int64_t n,
                                        T* room) {
  T* to = room;
  for (int64_t j = 0; j < n; j += kPackedColumns, to += k * kPackedColumns) {
    const int64_t width = std::min(kPackedColumns, n - j);
    const T* rows = bt + j * stride;
    if (has_matrix_units()) {  // treats a pair of elements as one of twice the width
      at::native::utils::transpose(width, k / 2, reinterpret_cast<const float*>(rows), stride / 2,
                                   reinterpret_cast<float*>(to), width);
    } else {
      transpose(rows, stride, width, k, to, width);
    }
  }
  return {room, k * kPackedColumns, 0};
}

template <class T>
void BlockGemm<T>::run(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const Packed<T>& b,
                       float* c, int64_t ldc, bool add) {
  for (int64_t j = 0; j < n; j += kPackedColumns) {
    const int64_t width = std::min(kPackedColumns, n - j), stride = b.stride ? b.stride : width;
    const T* columns = b.at + j / kPackedColumns * b.block + b.first_row * stride;
    blas::brgemm(m, width, k, lda, stride, ldc, add, a, columns, c + j, has_matrix_units());
  }
}

template <class T>
void BlockGemm<T>::release() {
  blas::brgemm_release(has_matrix_units());
}

template struct BlockGemm<float>;
template struct BlockGemm<c10::BFloat16>;
template void transpose(const float*, int64_t, int64_t, int64_t, float*, int64_t);
template void transpose(const c10::BFloat16*, int64_t, int64_t, int64_t, c10::BFloat16*, int64_t);

}  // namespace anymesh
