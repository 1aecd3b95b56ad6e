#pragma once

#include <torch/types.h>

namespace anymesh {

// Computes C [m, n] in fp32 = or += A B for T = float or c10::BFloat16. The matrices fit the cache,
// and the caller is inside a parallel region. bf16 uses AMX or AVX512-BF16 if the CPU has one
// (LibTorch's brgemm, from oneDNN). B is packed first, as far as the CPU needs it:
//
//   Packed<T> p = BlockGemm<T>::pack(b, stride, k, n, room);             B [k, n] in rows
//   Packed<T> p = BlockGemm<T>::pack_transposed(bt, stride, k, n, room); B^T [n, k] in rows
//   BlockGemm<T>::run(m, n, k, a, lda, p, c, ldc, add);
//
// k is even for T = c10::BFloat16, and n is a multiple of 16. `room` holds k * n elements. `room`
// and `b` must last as long as the packed matrix. run() may take fewer of the k rows and n columns
// that B was packed with: the first ones, or those from a multiple of kPackedColumns on. Rows that
// begin inside a cache line cost AMX two thirds of its speed, so rooms are AlignedBuffers.
inline constexpr int64_t kPackedColumns = 64;

template <class T>
struct Packed {
  const T* at;            // blocks of kPackedColumns columns, in rows
  int64_t block, stride;  // elements from one to the next; stride 0: the block's width
  int64_t first_row = 0;

  Packed rows_from(int64_t row) const { return {at, block, stride, first_row + row}; }
  Packed columns_from(int64_t column) const {  // REQUIRES: a multiple of kPackedColumns
    return {at + column / kPackedColumns * block, block, stride, first_row};
  }
};

template <class T>
struct AlignedBuffer {  // n elements, from the start of a cache line on
  explicit AlignedBuffer(int64_t n)
      : tensor(torch::empty({n}, c10::CppTypeToScalarType<T>::value)),
        data(tensor.template data_ptr<T>()) {}
  operator T*() const { return data; }
  torch::Tensor tensor;
  T* data;
};

template <class T>
struct BlockGemm {
  static Packed<T> pack(const T* b, int64_t stride, int64_t k, int64_t n, T* room);
  static Packed<T> pack_transposed(const T* bt, int64_t stride, int64_t k, int64_t n, T* room);
  static void run(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const Packed<T>& b,
                  float* c, int64_t ldc, bool add);
  // Whether the CPU has units for products of T that need B packed.
  static bool has_matrix_units();
  // Call this from a thread that has called run() and is done.
  static void release();
};

bool has_amx();

// out [n, m] = in [m, n]
template <class T>
void transpose(const T* in, int64_t in_stride, int64_t m, int64_t n, T* out, int64_t out_stride);

}  // namespace anymesh
