#include "framework/kernels/linear.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "framework/kernels/block_gemm.h"
#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/gradient_sink.h"
#include "framework/kernels/non_temporal_writer.h"
#include "framework/kernels/row_ops.h"

namespace anymesh {
namespace {

using T = c10::BFloat16;
using Gemm = BlockGemm<T>;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kBlockRows = 128, kColumns = kPackedColumns;  // a block of C
constexpr int64_t kDepth = 2048;  // products at a time, whose factors fit the cache
constexpr int64_t kPad = 32;      // keeps power-of-two rows out of the same cache set

// Calls work(first, count) for blocks of `size` of n, on all threads.
template <class Work>
void for_blocks(int64_t n, int64_t size, const Work& work) {
  at::parallel_for(0, (n + size - 1) / size, 1, [&](int64_t block, int64_t end) {
    for (; block < end; ++block) work(block * size, std::min(size, n - block * size));
    Gemm::release();
  });
}

// Returns the rows of a block, at most kBlockRows, that give the threads equal shares of m rows.
int64_t rows_per_block(int64_t m) {
  const int64_t threads = at::get_num_threads(), each = (m + threads - 1) / threads,
                blocks = (each + kBlockRows - 1) / kBlockRows;
  return ((each + blocks - 1) / blocks + 31) / 32 * 32;
}

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

// C [m, n] = A B, of k products each, plus `bias` [n] if it is not null. Rows of C are `stride`
// elements apart; 0 stands for n. The longer side of C is cut into shares of threads; the other
// operand is packed, or transposed, before. How C is cut changes no bit of it.
class Product {
 public:
  Product(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, T* c, const T* bias = nullptr,
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
        const Matrix rows = rows_of(row, height, room);
        for (int64_t column = 0; column < n_; column += kColumns)
          block(row, height, rows, column, packed + column * k_);
      });
    } else {
      const AlignedBuffer<T> room(m_ * row_room());
      const Matrix rows = all_rows(room);
      for_blocks(n_, kColumns, [&](int64_t column, int64_t width) {
        const AlignedBuffer<T> packed(width * k_);
        pack(column, width, packed);
        for (int64_t row = 0; row < m_; row += kBlockRows)
          block(row, std::min(kBlockRows, m_ - row), {rows.at + row * rows.stride, rows.stride},
                column, packed);
      });
    }
  }

 private:
  // For a long k and few rows, such as the gradient of the logits' input. Works on a part of the
  // depth at a time, so that neither A nor B is read twice from memory.
  void run_by_depth() const {
    const AlignedBuffer<float> sums(m_ * n_);
    for (int64_t done = 0; done < k_; done += kDepth) {
      const int64_t depth = std::min(kDepth, k_ - done);
      const Product part(m_, n_, depth, a_.from_column(done), b_.from_row(done), c_);
      const AlignedBuffer<T> packed(n_ * depth), room(m_ * part.row_room());
      const Matrix rows = part.all_rows(room);
      for_blocks(n_, kColumns, [&](int64_t column, int64_t width) {
        part.pack(column, width, packed + column * depth);
      });
      for_blocks(m_, rows_per_block(m_), [&](int64_t row, int64_t height) {
        for (int64_t column = 0; column < n_; column += kColumns)
          Gemm::run(height, std::min(kColumns, n_ - column), depth, rows.at + row * rows.stride,
                    rows.stride, {packed + column * depth, 0, 0}, sums + row * n_ + column, n_,
                    done > 0);
      });
    }
    for_blocks(m_, kBlockRows, [&](int64_t row, int64_t height) {
      for (int64_t column = 0; column < n_; column += kColumns)
        write_block(row, height, column, sums + row * n_ + column, n_);
    });
  }

  int64_t row_room() const { return a_.transposed ? k_ + kPad : 0; }  // elements

  Matrix rows_of(int64_t first, int64_t count, T* room) const {
    if (!a_.transposed) return {a_.at + first * a_.stride, a_.stride};
    transpose(a_.at + first, a_.stride, k_, count, room, row_room());
    return {room, row_room()};
  }

  // Returns all rows of A, in `room` if they have to be transposed.
  Matrix all_rows(T* room) const {
    if (!a_.transposed) return a_;
    for_blocks(m_, kColumns,
               [&](int64_t row, int64_t height) { rows_of(row, height, room + row * row_room()); });
    return {room, row_room()};
  }

  void pack(int64_t first, int64_t count, T* room) const {
    if (b_.transposed) {
      Gemm::pack_transposed(b_.at + first * b_.stride, b_.stride, k_, count, room);
    } else {
      Gemm::pack(b_.at + first, b_.stride, k_, count, room);
    }
  }

  void block(int64_t row, int64_t height, Matrix rows, int64_t column, const T* packed) const {
    alignas(64) float sums[kBlockRows * kColumns];
    const int64_t width = std::min(kColumns, n_ - column);
    for (int64_t done = 0; done < k_; done += kDepth)
      Gemm::run(height, width, std::min(kDepth, k_ - done), rows.at + done, rows.stride,
                {packed + done * width, 0, 0}, sums, kColumns, done > 0);
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
          add_row(sums + i * stride, bias_ + column, width, place);
        } else {
          scale_row(sums + i * stride, 1, width, place);
        }
      });
    }
  }

  int64_t m_, n_, k_;
  Matrix a_, b_;
  T* c_;
  const T* bias_;
  int64_t stride_;
};

const T* data(const torch::Tensor& x) { return x.const_data_ptr<T>(); }

// Returns a tensor of x's shape, but with `n` elements in a row.
torch::Tensor empty_rows(const torch::Tensor& x, int64_t n) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  return torch::empty(shape, x.options());
}

// The products of a linear layer: x [..., k], weight [n, k], bias [n] or undefined, dy [..., n].
struct BlockProducts {
  static torch::Tensor y(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
    const int64_t n = weight.size(0), k = weight.size(1);
    const torch::Tensor y = empty_rows(x, n);
    Product(x.numel() / k, n, k, {data(x), k}, {data(weight), k, true}, y.data_ptr<T>(),
            bias.defined() ? data(bias) : nullptr)
        .run();
    return y;
  }
  static torch::Tensor dx(const torch::Tensor& dy, const torch::Tensor& weight) {
    const int64_t n = weight.size(0), k = weight.size(1);
    const torch::Tensor dx = empty_rows(dy, k);
    Product(dy.numel() / n, k, n, {data(dy), n}, {data(weight), k}, dx.data_ptr<T>()).run();
    return dx;
  }
  static torch::Tensor dw(const torch::Tensor& dy, const torch::Tensor& x) {
    const int64_t n = dy.size(-1), k = x.size(-1);
    const torch::Tensor dw = torch::empty({n, k}, x.options());
    Product(n, k, x.numel() / k, {data(dy), n, true}, {data(x), k}, dw.data_ptr<T>()).run();
    return dw;
  }
};

// The same products in fp32, by LibTorch.
struct Fp32Products {
  static torch::Tensor wide(const torch::Tensor& x) { return x.to(torch::kFloat); }

  static torch::Tensor y(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
    return at::linear(wide(x), wide(weight), bias.defined() ? wide(bias) : bias)
        .to(x.scalar_type());
  }
  static torch::Tensor dx(const torch::Tensor& dy, const torch::Tensor& weight) {
    return at::matmul(wide(dy), wide(weight)).to(dy.scalar_type());
  }
  static torch::Tensor dw(const torch::Tensor& dy, const torch::Tensor& x) {
    return at::mm(wide(dy).flatten(0, -2).t(), wide(x).flatten(0, -2)).to(x.scalar_type());
  }
};

// The same by LibTorch, for devices with memory of their own.
struct DeviceProducts {
  static torch::Tensor y(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
    return at::linear(x, weight, bias);
  }
  static torch::Tensor dx(const torch::Tensor& dy, const torch::Tensor& weight) {
    return at::matmul(dy, weight);
  }
  static torch::Tensor dw(const torch::Tensor& dy, const torch::Tensor& x) {
    return at::mm(dy.flatten(0, -2).t(), x.flatten(0, -2));
  }
};

torch::Tensor weight_gradient(const torch::Tensor& weight, const torch::Tensor& dy,
                              const torch::Tensor& x,
                              torch::Tensor (*product)(const torch::Tensor&,
                                                       const torch::Tensor&)) {
  GradientSink* const sink = sink_of(weight);
  if (sink && sink->add_product(dy.flatten(0, -2), x.flatten(0, -2))) return {};
  return product(dy, x);
}

torch::Tensor bias_gradient(const torch::Tensor& bias, const torch::Tensor& dy) {
  if (dy.is_cuda() && has_kernels(dy)) return gradient_of_parts(cuda_column_sums(dy), bias);
  return dy.flatten(0, -2).sum(0);
}

template <class Products>
struct Linear : torch::autograd::Function<Linear<Products>> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& input,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias) {
    RECORD_FUNCTION("anymesh::blocked_linear", c10::ArrayRef<const c10::IValue>{});
    const torch::Tensor x = input.contiguous();
    ctx->save_for_backward({x, weight, bias.value_or(torch::Tensor())});
    return Products::y(x, weight, bias.value_or(torch::Tensor()));
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::blocked_linear_backward", c10::ArrayRef<const c10::IValue>{});
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2],
                        dy = grads[0].contiguous();
    torch::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0)) dx = Products::dx(dy, weight);
    if (ctx->needs_input_grad(1)) dw = weight_gradient(weight, dy, x, Products::dw);
    if (bias.defined() && ctx->needs_input_grad(2)) db = bias_gradient(bias, dy);
    return {dx, dw, db};
  }
};

// Whether at::linear has instructions to use. CPUs with AMX have AVX-512's instructions for fp16.
bool libtorch_has_instructions(torch::Dtype dtype) {
#if defined(__x86_64__)
  if (dtype == torch::kBFloat16) return __builtin_cpu_supports("avx512bf16");
  if (dtype == torch::kHalf) return has_amx();
#endif
  return true;
}

// Whether the products of a weight [n, k] with some rows run in blocks. Rows may lie apart.
bool can_block_rows(const torch::Tensor& weight) {
  return weight.is_cpu() && weight.scalar_type() == torch::kBFloat16 && Gemm::has_matrix_units() &&
         weight.size(0) % kRowMultiple == 0 && weight.size(1) % kRowMultiple == 0 &&
         weight.is_contiguous();
}

bool can_block(const torch::Tensor& x, const torch::Tensor& weight) {
  return x.scalar_type() == torch::kBFloat16 && can_block_rows(weight) &&
         x.numel() / weight.size(1) % 2 == 0;
}

bool widens(const torch::Tensor& x) {
  return x.is_cpu() && !libtorch_has_instructions(x.scalar_type());
}

Matrix rows_of(const torch::Tensor& x) { return {data(x), x.stride(0)}; }

// Returns rows with one of zeros behind them, so that there are as many as a block takes.
torch::Tensor even(const torch::Tensor& rows) {
  return rows.size(0) % 2 == 0 ? rows : at::constant_pad_nd(rows, {0, 0, 0, 1});
}

}  // namespace

void linear_into(const torch::Tensor& y, const torch::Tensor& x, const torch::Tensor& weight) {
  torch::Tensor out = y;
  if (can_block_rows(weight)) {
    const int64_t n = weight.size(0), k = weight.size(1);
    Product(x.size(0), n, k, rows_of(x), {data(weight), k, true}, out.data_ptr<T>(), nullptr,
            out.stride(0))
        .run();
  } else if (widens(x)) {
    out.copy_(Fp32Products::y(x, weight, {}));
  } else {
    at::mm_out(out, x, weight.t());
  }
}

void linear_dx_into(const torch::Tensor& dx, const torch::Tensor& dy, const torch::Tensor& weight,
                    bool add) {
  torch::Tensor out = dx;
  if (can_block_rows(weight)) {
    const int64_t n = weight.size(0), k = weight.size(1);
    const torch::Tensor part = add ? at::empty_like(out) : out;
    Product(dy.size(0), k, n, rows_of(dy), {data(weight), k}, part.data_ptr<T>(), nullptr,
            part.stride(0))
        .run();
    if (add) out.add_(part);
  } else if (widens(dy)) {
    const torch::Tensor part = Fp32Products::dx(dy, weight);
    add ? out.add_(part) : out.copy_(part);
  } else {
    add ? at::addmm_out(out, out, dy, weight) : at::mm_out(out, dy, weight);
  }
}

void linear_dw_into(const torch::Tensor& dw, const torch::Tensor& dy, const torch::Tensor& x) {
  torch::Tensor out = dw;
  if (can_block_rows(dw)) {
    const torch::Tensor rows = even(dy), inputs = even(x);
    const Matrix gradients = rows_of(rows);
    Product(dw.size(0), dw.size(1), rows.size(0), {gradients.at, gradients.stride, true},
            rows_of(inputs), out.data_ptr<T>())
        .run();
  } else if (widens(x)) {
    out.copy_(Fp32Products::dw(dy, x));
  } else {
    at::mm_out(out, dy.t(), x);
  }
}

torch::Tensor blocked_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias) {
  if (!x.is_cpu()) return Linear<DeviceProducts>::apply(x, weight, if_defined(bias));
  if (can_block(x, weight)) return Linear<BlockProducts>::apply(x, weight, if_defined(bias));
  if (widens(x)) return widened_linear(x, weight, bias);
  return at::linear(x, weight, bias);
}

torch::Tensor widened_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias) {
  return Linear<Fp32Products>::apply(x, weight, if_defined(bias));
}

}  // namespace anymesh
