#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <type_traits>

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

// Where a product goes: rows of Out, `stride` elements apart, plus `bias` if it is not null.
template <class T, class Out = T>
struct ToRows {
  Out* at;
  int64_t stride, numel;    // numel: of all rows
  const T* bias = nullptr;  // REQUIRES: T is Out

  // Takes rows and columns of C from sums, at most kPackedColumns columns, a multiple of 16. Sums
  // have rows `apart` elements apart. `piece` is BlockProduct::in_pieces()'s.
  void write(int64_t row, int64_t height, int64_t column, int64_t width, const float* sums,
             int64_t apart, int64_t /*piece*/) const {
    NonTemporalWriter<Out, kPackedColumns> writer(numel);
    for (int64_t i = 0; i < height; ++i) {
      writer.write(at + (row + i) * stride + column, width, [&](Out* place) {
        if constexpr (std::is_same_v<T, Out>) {
          if (bias) return add_bias_row(sums + i * apart, bias + column, width, place);
        }
        scale_row(sums + i * apart, 1, width, place);
      });
    }
  }
};

// C [m, n] = A B for T = float or c10::BFloat16 on the CPU, of k products each. n is a multiple of
// 16, and k is even for c10::BFloat16. C goes to `to`, a ToRows or a type that writes as it does.
// The longer side of C is cut into shares of threads; the other operand is packed, or transposed,
// before. How C is cut changes no bit of it, nor do m and n.
template <class T, class To = ToRows<T>>
class BlockProduct {
  using Gemm = BlockGemm<T>;
  using Rows = Matrix<T>;
  static constexpr int64_t kBlockRows = 128, kColumns = kPackedColumns;  // a block of C
  static constexpr int64_t kDepth = 4096 / sizeof(T);  // products at a time; factors fit the cache
  static constexpr int64_t kMostBlocks = 8;
  static constexpr int64_t kPad = 32;  // keeps power-of-two rows out of the same cache set

 public:
  BlockProduct(int64_t m, int64_t n, int64_t k, Rows a, Rows b, To to)
      : m_(m), n_(n), k_(k), a_(a), b_(b), to_(to) {}

  // Sums the products in 2^i blocks, each apart, and adds these as a binary tree. k lies there as
  // [parts, blocks, k / parts / blocks]: a block has a piece of each part. So its sum has the same
  // bits where other blocks are elsewhere.
  BlockProduct& in_blocks(int64_t blocks, int64_t parts) {
    blocks_ = blocks;
    parts_ = parts;
    return *this;
  }

  // Writes the sums of each k / pieces products, one piece after the other, to a type that adds.
  BlockProduct& in_pieces(int64_t pieces) {
    pieces_ = pieces;
    return *this;
  }

  void run() const {
    if (const int64_t depth = k_ / pieces_ / blocks_; depth > 4 * kDepth && depth > 2 * m_) {
      for (int64_t piece = 0; piece < pieces_; ++piece) run_by_depth(piece);
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
  void run_by_depth(int64_t piece) const {
    const AlignedBuffer<float> sums(blocks_ * m_ * n_);
    for_depths(piece, [&](int64_t b, int64_t from, int64_t depth, bool add) {
      const BlockProduct part(m_, n_, depth, a_.from_column(from), b_.from_row(from), to_);
      const AlignedBuffer<T> packed(n_ * depth), room(m_ * part.row_room());
      const Rows rows = part.all_rows(room);
      for_blocks(n_, kColumns, [&](int64_t column, int64_t width) {
        part.pack(column, width, packed + column * depth);
      });
      for_blocks(m_, rows_per_block(m_), [&](int64_t row, int64_t height) {
        for (int64_t column = 0; column < n_; column += kColumns)
          multiply(height, std::min(kColumns, n_ - column), depth, rows.from_row(row),
                   packed + column * depth, sums + (b * m_ + row) * n_ + column, n_, add);
      });
    });
    for_blocks(m_, kBlockRows, [&](int64_t row, int64_t height) {
      fold(sums + row * n_, m_ * n_, height * n_);
      for (int64_t column = 0; column < n_; column += kColumns)
        to_.write(row, height, column, std::min(kColumns, n_ - column), sums + row * n_ + column,
                  n_, piece);
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
    alignas(64) float sums[kMostBlocks][kBlockRows * kColumns];
    const int64_t width = std::min(kColumns, n_ - column);
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      for_depths(piece, [&](int64_t b, int64_t from, int64_t depth, bool add) {
        multiply(height, width, depth, rows.from_column(from), packed + from * width, sums[b],
                 kColumns, add);
      });
      fold(sums[0], kBlockRows * kColumns, height * kColumns);
      to_.write(row, height, column, width, sums[0], kColumns, piece);
    }
  }

  // Calls work(block, from, depth, add) for all of a piece's k, at most kDepth at a time.
  template <class Work>
  void for_depths(int64_t piece, const Work& work) const {
    const int64_t all = k_ / pieces_, run = all / parts_ / blocks_;
    for (int64_t b = 0; b < blocks_; ++b)
      for (int64_t part = 0; part < parts_; ++part)
        for (int64_t done = 0; done < run; done += kDepth)
          work(b, piece * all + (part * blocks_ + b) * run + done, std::min(kDepth, run - done),
               part + done > 0);
  }

  // Adds the blocks' n sums, which lie `apart` elements from each other, to the first's.
  void fold(float* sums, int64_t apart, int64_t n) const {
    for (int64_t step = 1; step < blocks_; step *= 2)
      for (int64_t b = 0; b < blocks_; b += 2 * step)
        add_row(sums + (b + step) * apart, n, sums + b * apart);
  }

  int64_t m_, n_, k_;
  Rows a_, b_;
  To to_;
  int64_t blocks_ = 1, parts_ = 1, pieces_ = 1;
};

}  // namespace anymesh
