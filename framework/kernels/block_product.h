#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "framework/kernels/block_gemm.h"
#include "framework/kernels/non_temporal_writer.h"
#include "framework/kernels/row_ops.h"

namespace anymesh {

// Rows of elements T, or their transpose.
template <class T>
struct Matrix {
  const T* at;
  int64_t stride;           // elements from row to row
  bool transposed = false;  // stands for its transpose

  Matrix from_row(int64_t i) const {
    return {at + i * (transposed ? 1 : stride), stride, transposed};
  }
  Matrix from_column(int64_t j) const {
    return {at + j * (transposed ? stride : 1), stride, transposed};
  }
};

// C [m, n] = A B for T = float or c10::BFloat16 on the CPU, of k products each, plus `bias` [n] if
// it is not null. n is a multiple of 16, and k is even for c10::BFloat16. Rows of C are `stride`
// elements apart; 0 stands for n. The longer side of C is cut into shares of threads; the other
// operand is packed, or transposed, before. How C is cut changes no bit of it.
template <class T>
class BlockProduct {
  using Gemm = BlockGemm<T>;
  using Rows = Matrix<T>;
  static constexpr int64_t kBlockRows = 128, kColumns = kPackedColumns;  // a block of C
  static constexpr int64_t kDepth = 4096 / sizeof(T);  // products at a time; factors fit the cache
  static constexpr int64_t kPad = 32;  // keeps power-of-two rows out of the same cache set

 public:
  BlockProduct(int64_t m, int64_t n, int64_t k, Rows a, Rows b, T* c, const T* bias = nullptr,
               int64_t stride = 0)
      : m_(m), n_(n), k_(k), a_(a), b_(b), c_(c), bias_(bias), stride_(stride > 0 ? stride : n) {}

  void run() const {
    if (k_ > 4 * kDepth && k_ > 2 * m_) {
      run_by_depth();
    } else if (m_ > n_) {
      const AlignedBuffer<T> packed(n_ * k_);
      for_blocks(n_, kColumns,
                 [&](int64_t column, int64_t width) { pack(column, width, packed + column * k_); });
      for_blocks(m_, rows_per_block(m_), [&](int64_t row, int64_t height) {
        const AlignedBuffer<T> room(height * row_room());
        const Rows rows = rows_of(row, height, room);
        for (int64_t column = 0; column < n_; column += kColumns)
          block(row, height, rows, column, packed + column * k_);
      });
    } else {
      const AlignedBuffer<T> room(m_ * row_room());
      const Rows rows = all_rows(room);
      for_blocks(n_, kColumns, [&](int64_t column, int64_t width) {
        const AlignedBuffer<T> packed(width * k_);
        pack(column, width, packed);
        for (int64_t row = 0; row < m_; row += kBlockRows)
          block(row, std::min(kBlockRows, m_ - row), rows.from_row(row), column, packed);
      });
    }
  }

 private:
  // Calls work(first, count) for blocks of `size` of n, on all threads.
  template <class Work>
  static void for_blocks(int64_t n, int64_t size, const Work& work) {
    at::parallel_for(0, (n + size - 1) / size, 1, [&](int64_t block, int64_t end) {
      for (; block < end; ++block) work(block * size, std::min(size, n - block * size));
      Gemm::release();
    });
  }

  // Returns the rows of a block, at most kBlockRows, that give the threads equal shares of m rows.
  static int64_t rows_per_block(int64_t m) {
    const int64_t threads = at::get_num_threads(), each = (m + threads - 1) / threads,
                  blocks = (each + kBlockRows - 1) / kBlockRows;
    return ((each + blocks - 1) / blocks + 31) / 32 * 32;
  }

  // For a long k and few rows, such as the gradient of the logits' input. Works on a part of the
  // depth at a time, so that neither A nor B is read twice from memory.
  void run_by_depth() const {
    const AlignedBuffer<float> sums(m_ * n_);
    for (int64_t done = 0; done < k_; done += kDepth) {
      const int64_t depth = std::min(kDepth, k_ - done);
      const BlockProduct part(m_, n_, depth, a_.from_column(done), b_.from_row(done), c_);
      const AlignedBuffer<T> packed(n_ * depth), room(m_ * part.row_room());
      const Rows rows = part.all_rows(room);
      for_blocks(n_, kColumns, [&](int64_t column, int64_t width) {
        part.pack(column, width, packed + column * depth);
      });
      for_blocks(m_, rows_per_block(m_), [&](int64_t row, int64_t height) {
        for (int64_t column = 0; column < n_; column += kColumns)
          multiply(height, std::min(kColumns, n_ - column), depth, rows.from_row(row),
                   packed + column * depth, sums + row * n_ + column, n_, done > 0);
      });
    }
    for_blocks(m_, kBlockRows, [&](int64_t row, int64_t height) {
      for (int64_t column = 0; column < n_; column += kColumns)
        write_block(row, height, column, sums + row * n_ + column, n_);
    });
  }

  // Computes sums = or += A B for a packed B. Cuts heights and depths into few sizes: LibTorch
  // makes machine code for each size and stride that it meets, and keeps it. An expert has another
  // number of tokens at each step.
  static void multiply(int64_t height, int64_t width, int64_t depth, Rows rows, const T* packed,
                       float* sums, int64_t stride, bool add) {
    for (int64_t k = 0, products; k < depth; k += products) {
      products = largest_part(depth - k, {64, 16});
      for (int64_t i = 0, count; i < height; i += count) {
        count = largest_part(height - i, {8});
        Gemm::run(count, width, products, rows.at + i * rows.stride + k, rows.stride,
                  {packed + k * width, 0, 0}, sums + i * stride, stride, add || k > 0);
      }
    }
  }

  // Returns the most of n that is a multiple of one of `sizes`, the first that n reaches, or n.
  static int64_t largest_part(int64_t n, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes)
      if (n >= size) return n / size * size;
    return n;
  }

  // Elements from row to row of a transposed A.
  int64_t row_room() const {
    return a_.transposed ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(k_))) + kPad
                         : 0;
  }

  Rows rows_of(int64_t first, int64_t count, T* room) const {
    if (!a_.transposed) return {a_.at + first * a_.stride, a_.stride};
    transpose(a_.at + first, a_.stride, k_, count, room, row_room());
    return {room, row_room()};
  }

  // Returns all rows of A, in `room` if they have to be transposed.
  Rows all_rows(T* room) const {
    if (!a_.transposed) return a_;
    for_blocks(m_, kColumns,
               [&](int64_t row, int64_t height) { rows_of(row, height, room + row * row_room()); });
    return {room, row_room()};
  }

  void pack(int64_t first, int64_t count, T* room) const {
    if (b_.transposed) {
      Gemm::pack_transposed(b_.at + first * b_.stride, b_.stride, k_, count, room);
    } else if (Gemm::has_matrix_units()) {
      Gemm::pack(b_.at + first, b_.stride, k_, count, room);
    } else {
      for (int64_t i = 0; i < k_; ++i)
        std::copy_n(b_.at + i * b_.stride + first, count, room + i * count);
    }
  }

  void block(int64_t row, int64_t height, Rows rows, int64_t column, const T* packed) const {
    alignas(64) float sums[kBlockRows * kColumns];
    const int64_t width = std::min(kColumns, n_ - column);
    for (int64_t done = 0; done < k_; done += kDepth)
      multiply(height, width, std::min(kDepth, k_ - done), rows.from_column(done),
               packed + done * width, sums, kColumns, done > 0);
    write_block(row, height, column, sums, kColumns);
  }

  // Writes a block of C from its sums.
  void write_block(int64_t row, int64_t height, int64_t column, const float* sums,
                   int64_t stride) const {
    const int64_t width = std::min(kColumns, n_ - column);
    NonTemporalWriter<T, kColumns> writer(m_ * n_);
    for (int64_t i = 0; i < height; ++i) {
      writer.write(c_ + (row + i) * stride_ + column, width, [&](T* place) {
        if (bias_) {
          add_bias_row(sums + i * stride, bias_ + column, width, place);
        } else {
          scale_row(sums + i * stride, 1, width, place);
        }
      });
    }
  }

  int64_t m_, n_, k_;
  Rows a_, b_;
  T* c_;
  const T* bias_;
  int64_t stride_;
};

}  // namespace anymesh
