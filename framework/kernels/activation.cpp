#include "framework/kernels/activation.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

template <class Lanes>
ANYMESH_INLINE Lanes sigmoid(Lanes x) {
  return 1 / (1 + exp(-x));
}

constexpr float kRoot = 0.7978845608f, kCube = 0.044715f;  // the root of 2 / pi; GELU's

template <class Lanes>
ANYMESH_INLINE Lanes gelu(Lanes x) {
  return x * sigmoid(2 * kRoot * (x + kCube * x * x * x));
}
template <class Lanes>
ANYMESH_INLINE Lanes gelu_slope(Lanes x) {
  const Lanes s = sigmoid(2 * kRoot * (x + kCube * x * x * x));
  return s + x * s * (1 - s) * (2 * kRoot * (1 + 3 * kCube * x * x));
}

template <class T>
void gelu(const T* x, int64_t n, T* y) {
  for_lanes(n, [=]<class Lanes>(Lanes, int64_t i, int64_t count) ANYMESH_INLINE_LAMBDA {
    store_some(y + i, gelu(load_some<Lanes>(x + i, count)), count);
  });
}
template <class T>
void gelu_backward(const T* x, const T* dy, int64_t n, T* dx) {
  for_lanes(n, [=]<class Lanes>(Lanes, int64_t i, int64_t count) ANYMESH_INLINE_LAMBDA {
    store_some(dx + i, load_some<Lanes>(dy + i, count) * gelu_slope(load_some<Lanes>(x + i, count)),
               count);
  });
}

// x is a row [gate, up].
template <class T>
void swiglu_row(const T* x, int64_t f, T* y) {
  for_lanes(f, [=]<class Lanes>(Lanes, int64_t i, int64_t count) ANYMESH_INLINE_LAMBDA {
    const Lanes gate = load_some<Lanes>(x + i, count), up = load_some<Lanes>(x + f + i, count);
    store_some(y + i, gate * sigmoid(gate) * up, count);
  });
}
template <class T>
void swiglu_backward_row(const T* x, const T* dy, int64_t f, T* dx) {
  for_lanes(f, [=]<class Lanes>(Lanes, int64_t i, int64_t count) ANYMESH_INLINE_LAMBDA {
    const Lanes gate = load_some<Lanes>(x + i, count), up = load_some<Lanes>(x + f + i, count),
                gradient = load_some<Lanes>(dy + i, count), s = sigmoid(gate);
    store_some(dx + i, gradient * up * (s + gate * s * (1 - s)), count);
    store_some(dx + f + i, gradient * gate * s, count);
  });
}

// Calls work(first, count, T{}) for all elements of x, on all threads.
template <class Work>
void for_elements(const torch::Tensor& x, const Work& work) {
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    with_dtype_of(x, [&]<class T>(T type) { work(begin, end - begin, type); });
  });
}

// y [..., f] of x [..., 2f]
void swiglu_rows(const torch::Tensor& x, const torch::Tensor& y) {
  const int64_t f = y.size(-1);
  for_rows(x, y.numel() / f, std::max<int64_t>(1, kGrain / f), [&]<class T>(int64_t row, T) {
    swiglu_row(x.const_data_ptr<T>() + row * 2 * f, f, y.data_ptr<T>() + row * f);
  });
}
void swiglu_backward_rows(const torch::Tensor& x, const torch::Tensor& dy,
                          const torch::Tensor& dx) {
  const int64_t f = dy.size(-1);
  for_rows(x, dy.numel() / f, std::max<int64_t>(1, kGrain / f), [&]<class T>(int64_t row, T) {
    swiglu_backward_row(x.const_data_ptr<T>() + row * 2 * f, dy.const_data_ptr<T>() + row * f, f,
                        dx.data_ptr<T>() + row * 2 * f);
  });
}

struct Gelu : torch::autograd::Function<Gelu> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& input) {
    RECORD_FUNCTION("anymesh::gelu", (std::array<c10::IValue, 1>{input}));
    const torch::Tensor x = computed(input.contiguous()), y = torch::empty_like(x);
    for_elements(x, [&]<class T>(int64_t first, int64_t count, T) {
      gelu(x.const_data_ptr<T>() + first, count, y.data_ptr<T>() + first);
    });
    ctx->save_for_backward({input});
    return y.to(input.scalar_type());
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::gelu_backward", (std::array<c10::IValue, 1>{grads[0]}));
    const torch::Tensor input = ctx->get_saved_variables()[0], x = computed(input.contiguous()),
                        dy = computed(grads[0].contiguous()), dx = torch::empty_like(x);
    for_elements(x, [&]<class T>(int64_t first, int64_t count, T) {
      gelu_backward(x.const_data_ptr<T>() + first, dy.const_data_ptr<T>() + first, count,
                    dx.data_ptr<T>() + first);
    });
    return {dx.to(input.scalar_type())};
  }
};

struct Swiglu : torch::autograd::Function<Swiglu> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& input) {
    RECORD_FUNCTION("anymesh::swiglu", (std::array<c10::IValue, 1>{input}));
    const torch::Tensor x = computed(input.contiguous());
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() /= 2;
    const torch::Tensor y = torch::empty(shape, x.options());
    (x.is_cuda() ? cuda_swiglu : swiglu_rows)(x, y);
    ctx->save_for_backward({input});
    return y.to(input.scalar_type());
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::swiglu_backward", (std::array<c10::IValue, 1>{grads[0]}));
    const torch::Tensor input = ctx->get_saved_variables()[0], x = computed(input.contiguous()),
                        dy = computed(grads[0].contiguous()), dx = torch::empty_like(x);
    (x.is_cuda() ? cuda_swiglu_backward : swiglu_backward_rows)(x, dy, dx);
    return {dx.to(input.scalar_type())};
  }
};

}  // namespace

torch::Tensor gelu_tanh(const torch::Tensor& x) {
  return has_cpu_kernels(x) ? Gelu::apply(x) : at::gelu(x, "tanh");
}

torch::Tensor swiglu(const torch::Tensor& x) {
  if (has_kernels(x)) return Swiglu::apply(x);
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

torch::Tensor geglu(const torch::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return gelu_tanh(halves[0]) * halves[1];
}

}  // namespace anymesh
