#include "framework/kernels/linear.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "framework/kernels/block_gemm.h"
#include "framework/kernels/rows.h"

namespace anymesh {
namespace {

using T = c10::BFloat16;
using Gemm = BlockGemm<T>;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kMost = 1 << 22;          // multiplications; from there on oneDNN is as fast
constexpr int64_t kBlock = Gemm::kColumns;  // rows and columns of C at a time

struct Rows {
  const T* at;
  int64_t stride;
};

// C [m, n] = A B, of k products each, and `bias` [n] if it is not null, on all threads.
//   pack(first, count, room)   columns of B, packed; count * k elements of room
//   rows(first, count, room)   rows of A; count * k elements of room
template <class Pack, class RowsOf>
void product(int64_t m, int64_t n, int64_t k, const Pack& pack, const RowsOf& rows, T* c,
             const float* bias = nullptr) {
  const bool by_rows = m > n;
  at::parallel_for(
      0, ((by_rows ? m : n) + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
        begin *= kBlock, end *= kBlock;
        const int64_t first_row = by_rows ? begin : 0, last_row = by_rows ? std::min(end, m) : m,
                      first_column = by_rows ? 0 : begin,
                      columns = (by_rows ? n : std::min(end, n)) - first_column;
        std::vector<T> columns_room(static_cast<size_t>(columns * k)), rows_room(kBlock * k);
        alignas(64) float sums[kBlock * kBlock];
        const Packed<T> b = pack(first_column, columns, columns_room.data());
        for (int64_t row = first_row; row < last_row; row += kBlock) {
          const int64_t height = std::min(kBlock, last_row - row);
          const Rows a = rows(row, height, rows_room.data());
          for (int64_t j = 0; j < columns; j += kBlock) {
            const int64_t width = std::min(kBlock, columns - j), column = first_column + j;
            Gemm::run(height, width, k, a.at, a.stride,
                      {b.at + j / kBlock * b.block, b.block, b.stride}, sums, kBlock, false);
            for (int64_t i = 0; i < height; ++i) {
              T* to = c + (row + i) * n + column;
              if (bias) {
                added(sums + i * kBlock, bias + column, width, to);
              } else {
                scaled(sums + i * kBlock, 1, width, to);
              }
            }
          }
        }
        Gemm::release();
      });
}

struct SmallLinear : torch::autograd::Function<SmallLinear> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& input,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias) {
    RECORD_FUNCTION("anymesh::small_linear", c10::ArrayRef<const c10::IValue>{});
    const torch::Tensor x = input.contiguous();
    const int64_t n = weight.size(0), k = weight.size(1);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = n;
    const torch::Tensor y = torch::empty(shape, x.options());
    const torch::Tensor b = bias ? bias->to(torch::kFloat) : torch::Tensor();
    const T *from = x.const_data_ptr<T>(), *w = weight.const_data_ptr<T>();
    product(
        x.numel() / k, n, k,
        [&](int64_t first, int64_t count, T* room) {
          return Gemm::pack_transposed(w + first * k, k, k, count, room);
        },
        [&](int64_t first, int64_t, T*) {
          return Rows{from + first * k, k};
        },
        y.data_ptr<T>(), bias ? b.const_data_ptr<float>() : nullptr);
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return y;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::small_linear_backward", c10::ArrayRef<const c10::IValue>{});
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], dy = grads[0].contiguous();
    return {ctx->needs_input_grad(0) ? input_gradient(dy, weight, x) : torch::Tensor(),
            ctx->needs_input_grad(1) ? weight_gradient(dy, x, weight) : torch::Tensor(),
            ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2) ? dy.flatten(0, -2).sum(0)
                                                                         : torch::Tensor()};
  }

  // dx [m, k] = dy W
  static torch::Tensor input_gradient(const torch::Tensor& dy, const torch::Tensor& weight,
                                      const torch::Tensor& x) {
    const int64_t n = weight.size(0), k = weight.size(1);
    torch::Tensor dx = torch::empty_like(x);
    const T *from = dy.const_data_ptr<T>(), *w = weight.const_data_ptr<T>();
    product(
        x.numel() / k, k, n,
        [&](int64_t first, int64_t count, T* room) {
          return Gemm::pack(w + first, k, n, count, room);
        },
        [&](int64_t first, int64_t, T*) {
          return Rows{from + first * n, n};
        },
        dx.data_ptr<T>());
    return dx;
  }

  // dW [n, k] = dy^T x
  static torch::Tensor weight_gradient(const torch::Tensor& dy, const torch::Tensor& x,
                                       const torch::Tensor& weight) {
    const int64_t n = weight.size(0), k = weight.size(1), m = x.numel() / k;
    torch::Tensor dw = torch::empty_like(weight);
    const T *dy_at = dy.const_data_ptr<T>(), *x_at = x.const_data_ptr<T>();
    product(
        n, k, m,
        [&](int64_t first, int64_t count, T* room) {
          return Gemm::pack(x_at + first, k, m, count, room);
        },
        [&](int64_t first, int64_t count, T* room) {
          transpose(dy_at + first, n, m, count, room, m);
          return Rows{room, m};
        },
        dw.data_ptr<T>());
    return dw;
  }
};

bool can_block(const torch::Tensor& x, const torch::Tensor& weight) {
  const auto whole = [](int64_t n) { return n % kRowMultiple == 0; };
  return x.device().is_cpu() && x.scalar_type() == torch::kBFloat16 && Gemm::has_units() &&
         whole(weight.size(0)) && whole(weight.size(1)) && weight.is_contiguous() &&
         x.numel() / weight.size(1) % 2 == 0 && x.numel() <= kMost / weight.size(0);
}

}  // namespace

torch::Tensor small_linear(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias) {
  if (!can_block(x, weight)) return at::linear(x, weight, bias);
  return SmallLinear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

}  // namespace anymesh
