#include "framework/kernels/linear.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <type_traits>
#include <vector>

#include "framework/kernels/block_product.h"
#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/gradient_sink.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

template <class T>
const T* elements(const torch::Tensor& x) {
  return x.const_data_ptr<T>();
}

// Returns a tensor of x's shape, but with `n` elements in a row.
torch::Tensor empty_rows(const torch::Tensor& x, int64_t n) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  return torch::empty(shape, x.options());
}

template <class T>
Matrix<T> rows_of(const torch::Tensor& x, bool transposed = false) {
  return {elements<T>(x), x.stride(0), transposed};
}

template <class T>
ToRows<T> to_rows(const torch::Tensor& y, const T* bias = nullptr) {
  return {y.data_ptr<T>(), y.stride(0), y.numel(), bias};
}

// The products of a linear layer: x [..., k], weight [n, k], bias [n] or undefined, dy [..., n].
// Those that end in `_into` write into rows of a matrix, and take rows of one.
template <class T>
struct BlockProducts {
  static void y_into(torch::Tensor y, const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& bias) {
    BlockProduct<T>(x.size(0), weight.size(0), weight.size(1), rows_of<T>(x),
                    rows_of<T>(weight, /*transposed=*/true),
                    to_rows<T>(y, bias.defined() ? elements<T>(bias) : nullptr))
        .run();
  }
  static void dx_into(torch::Tensor dx, const torch::Tensor& dy, const torch::Tensor& weight) {
    BlockProduct<T>(dy.size(0), weight.size(1), weight.size(0), rows_of<T>(dy), rows_of<T>(weight),
                    to_rows<T>(dx))
        .run();
  }
  static void dw_into(torch::Tensor dw, const torch::Tensor& dy, const torch::Tensor& x) {
    BlockProduct<T>(dw.size(0), dw.size(1), dy.size(0), rows_of<T>(dy, /*transposed=*/true),
                    rows_of<T>(x), to_rows<T>(dw))
        .run();
  }

  static torch::Tensor y(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
    const torch::Tensor y = empty_rows(x, weight.size(0));
    y_into(as_matrix(y), as_matrix(x), weight, bias);
    return y;
  }
  static torch::Tensor dx(const torch::Tensor& dy, const torch::Tensor& weight) {
    const torch::Tensor dx = empty_rows(dy, weight.size(1));
    dx_into(as_matrix(dx), as_matrix(dy), weight);
    return dx;
  }
  static torch::Tensor dw(const torch::Tensor& dy, const torch::Tensor& x) {
    const torch::Tensor dw = torch::empty({dy.size(-1), x.size(-1)}, x.options());
    dw_into(dw, as_matrix(dy), as_matrix(x));
    return dw;
  }
  static torch::Tensor as_matrix(const torch::Tensor& x) { return x.view({-1, x.size(-1)}); }
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

// The same by LibTorch.
struct LibTorchProducts {
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

torch::Tensor bias_gradient(const torch::Tensor& bias, const torch::Tensor& dy) {
  if (dy.is_cuda() && has_kernels(dy)) return gradient_of_parts(cuda_column_sums(dy), bias);
  return dy.flatten(0, -2).sum(0);
}

template <class Products>
struct Linear : torch::autograd::Function<Linear<Products>> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& input,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias,
                               const c10::intrusive_ptr<SharedInput>& shared) {
    RECORD_FUNCTION("anymesh::blocked_linear", (std::array<c10::IValue, 2>{input, weight}));
    const torch::Tensor x = input.contiguous();
    ctx->save_for_backward({x, weight, bias.value_or(torch::Tensor())});
    if (shared) ctx->saved_data["shared"] = c10::IValue::make_capsule(shared);
    return Products::y(shared ? shared->start_whole(x)() : x, weight,
                       bias.value_or(torch::Tensor()));
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    RECORD_FUNCTION("anymesh::blocked_linear_backward",
                    (std::array<c10::IValue, 3>{grads[0], saved[0], saved[1]}));
    const torch::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2],
                        dy = grads[0].contiguous();
    const auto shared = ctx->saved_data.find("shared");
    const c10::intrusive_ptr<SharedInput> input =
        shared == ctx->saved_data.end()
            ? nullptr
            : c10::static_intrusive_pointer_cast<SharedInput>(shared->second.toCapsule());
    SharedInput::Wait whole = [x] { return x; }, gradient = [] { return torch::Tensor(); };
    if (input && ctx->needs_input_grad(1)) {
      if (puts_off(weight))  // with the product
        whole = [input, x] { return input->start_whole(x)(); };
      else
        whole = input->start_whole(x);
    }
    if (ctx->needs_input_grad(0)) {
      const torch::Tensor dx = Products::dx(dy, weight);
      gradient = [dx] { return dx; };
      if (input) gradient = input->start_gradient(dx);
    }
    torch::Tensor dw, db;
    if (ctx->needs_input_grad(1)) dw = gradient_of_product(dy, whole, weight, Products::dw);
    if (bias.defined() && ctx->needs_input_grad(2)) db = bias_gradient(bias, dy);
    return {gradient(), dw, db, {}};
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
  return weight.is_cpu() && runs_in_blocks(weight.scalar_type()) &&
         weight.size(0) % kRowMultiple == 0 && weight.size(1) % kRowMultiple == 0 &&
         weight.is_contiguous();
}

bool can_block(const torch::Tensor& x, const torch::Tensor& weight) {
  return x.numel() > 0 && x.scalar_type() == weight.scalar_type() && can_block_rows(weight) &&
         (x.scalar_type() == torch::kFloat || x.numel() / weight.size(1) % 2 == 0);
}

bool widens(const torch::Tensor& x) {
  return x.is_cpu() && !libtorch_has_instructions(x.scalar_type());
}

// Returns rows with one of zeros behind them, so that there are as many as a block of T takes.
template <class T>
torch::Tensor even(const torch::Tensor& rows) {
  const bool fits = std::is_same_v<T, float> || rows.size(0) % 2 == 0;
  return fits ? rows : at::constant_pad_nd(rows, {0, 0, 0, 1});
}

}  // namespace

bool runs_in_blocks(torch::Dtype dtype) {
  if (dtype == torch::kBFloat16) return BlockGemm<c10::BFloat16>::has_matrix_units();
#if defined(__x86_64__)
  if (dtype == torch::kFloat)
    return __builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel");
#endif
  return false;
}

void linear_into(const torch::Tensor& y, const torch::Tensor& x, const torch::Tensor& weight) {
  torch::Tensor out = y;
  if (can_block_rows(weight)) {
    with_dtype_of(x, [&]<class T>(T) { BlockProducts<T>::y_into(y, x, weight, {}); });
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
    const torch::Tensor part = add ? at::empty_like(out) : out;
    with_dtype_of(dy, [&]<class T>(T) { BlockProducts<T>::dx_into(part, dy, weight); });
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
    with_dtype_of(x, [&]<class T>(T) { BlockProducts<T>::dw_into(dw, even<T>(dy), even<T>(x)); });
  } else if (widens(x)) {
    out.copy_(Fp32Products::dw(dy, x));
  } else {
    at::mm_out(out, dy.t(), x);
  }
}

torch::Tensor blocked_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias) {
  return shared_linear({}, x, weight, bias);
}

torch::Tensor shared_linear(const c10::intrusive_ptr<SharedInput>& input, const torch::Tensor& x,
                            const torch::Tensor& weight, const torch::Tensor& bias) {
  if (can_block(x, weight)) {
    return with_dtype_of(x, [&]<class T>(T) {
      return Linear<BlockProducts<T>>::apply(x, weight, if_defined(bias), input);
    });
  }
  if (widens(x)) return Linear<Fp32Products>::apply(x, weight, if_defined(bias), input);
  return Linear<LibTorchProducts>::apply(x, weight, if_defined(bias), input);
}

torch::Tensor widened_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias) {
  return Linear<Fp32Products>::apply(x, weight, if_defined(bias), nullptr);
}

}  // namespace anymesh
