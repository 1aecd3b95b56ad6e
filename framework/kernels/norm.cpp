#include "framework/kernels/norm.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "framework/kernels/dispatch.h"
#include "framework/lanes.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kParts = 64;  // of the rows, whose gradients of weights are summed apart

struct Moments {
  float mean, inverse;  // 1 / the deviation
};

// y [h] of x [h]; without a bias the mean counts as 0.
template <class T>
Moments norm_row(const T* x, const T* weight, const T* bias, float epsilon, int64_t h, T* y) {
  return in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    const auto n = static_cast<float>(h);
    Lanes total, squares;
    if (bias)
      for (int64_t i = 0; i < h; i += kLanes) total += load<Lanes>(x + i);
    const float mean = sum(total) / n;
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes d = load<Lanes>(x + i) - mean;
      squares += d * d;
    }
    const float inverse = 1 / std::sqrt(sum(squares) / n + epsilon);
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes normed = (load<Lanes>(x + i) - mean) * inverse * load<Lanes>(weight + i);
      store(y + i, bias ? normed + load<Lanes>(bias + i) : normed);
    }
    return Moments{mean, inverse};
  });
}

// dx [h], which begins as `dsum` if there is one; the gradients of weight and bias are added to.
template <class T>
void norm_backward_row(const T* x, const T* dy, const T* dsum, const T* weight, Moments of,
                       int64_t h, T* dx, float* dweight, float* dbias) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    const auto n = static_cast<float>(h);
    Lanes total, with_x;
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes normed = (load<Lanes>(x + i) - of.mean) * of.inverse, d = load<Lanes>(dy + i),
                  scaled = d * load<Lanes>(weight + i);
      total += scaled;
      with_x += scaled * normed;
      store(dweight + i, load<Lanes>(dweight + i) + d * normed);
      if (dbias) store(dbias + i, load<Lanes>(dbias + i) + d);
    }
    const float mean = dbias ? sum(total) / n : 0, slope = sum(with_x) / n;
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes normed = (load<Lanes>(x + i) - of.mean) * of.inverse,
                  scaled = load<Lanes>(dy + i) * load<Lanes>(weight + i),
                  d = (scaled - mean - normed * slope) * of.inverse;
      store(dx + i, dsum ? d + load<Lanes>(dsum + i) : d);
    }
  });
}

template <class T>
void add_row(const T* x, const T* y, int64_t h, T* sum) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    for (int64_t i = 0; i < h; i += kLanes) store(sum + i, load<Lanes>(x + i) + load<Lanes>(y + i));
  });
}

template <class T>
const T* data(const torch::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  // {norm} of x; {x + y, norm} if there is a y.
  static tensor_list forward(AutogradContext* ctx, const torch::Tensor& input,
                             const std::optional<torch::Tensor>& other, const torch::Tensor& weight,
                             const std::optional<torch::Tensor>& bias, double epsilon) {
    RECORD_FUNCTION("anymesh::norm", c10::ArrayRef<const c10::IValue>{});
    const torch::Tensor x = input.contiguous(), y = other ? other->contiguous() : torch::Tensor(),
                        b = bias.value_or(torch::Tensor());
    const int64_t h = x.size(-1), rows = x.numel() / h;
    const torch::Tensor sum = other ? torch::empty_like(x) : x, normed = torch::empty_like(x),
                        moments = torch::empty({rows, 2}, torch::kFloat);
    of_dtype(x, [&]<class T>(T) {
      at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / h), [&](int64_t row, int64_t end) {
        for (; row < end; ++row) {
          const int64_t at = row * h;
          if (other) add_row(data<T>(x) + at, data<T>(y) + at, h, sum.data_ptr<T>() + at);
          const Moments of = norm_row(data<T>(sum) + at, data<T>(weight), data<T>(b),
                                      static_cast<float>(epsilon), h, normed.data_ptr<T>() + at);
          float* kept = moments.data_ptr<float>() + 2 * row;
          kept[0] = of.mean;
          kept[1] = of.inverse;
        }
      });
    });
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({sum, weight, moments});
    ctx->saved_data["bias"] = bias.has_value();
    return other ? tensor_list{sum, normed} : tensor_list{normed};
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::norm_backward", c10::ArrayRef<const c10::IValue>{});
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &moments = saved[2];
    const bool has_sum = grads.size() == 2, has_bias = ctx->saved_data["bias"].toBool();
    if (!grads.back().defined()) return {grads[0], grads[0], {}, {}, {}};
    const torch::Tensor dy = grads.back().contiguous(),
                        dsum =
                            has_sum && grads[0].defined() ? grads[0].contiguous() : torch::Tensor(),
                        dx = torch::empty_like(x);
    const int64_t h = x.size(-1), rows = x.numel() / h, part = (rows + kParts - 1) / kParts,
                  parts = (rows + part - 1) / part;
    const torch::Tensor sums = torch::zeros({parts, 2, h}, torch::kFloat);
    float* totals = sums.data_ptr<float>();
    of_dtype(x, [&]<class T>(T) {
      at::parallel_for(
          0, parts, std::max<int64_t>(1, kGrain / (part * h)), [&](int64_t p, int64_t end) {
            for (; p < end; ++p) {
              float* dweight = totals + 2 * p * h;
              for (int64_t row = p * part; row < std::min(rows, (p + 1) * part); ++row) {
                const int64_t at = row * h;
                const float* of = moments.const_data_ptr<float>() + 2 * row;
                norm_backward_row(data<T>(x) + at, data<T>(dy) + at,
                                  dsum.defined() ? data<T>(dsum) + at : nullptr, data<T>(weight),
                                  {of[0], of[1]}, h, dx.data_ptr<T>() + at, dweight,
                                  has_bias ? dweight + h : nullptr);
              }
            }
          });
    });
    for (int64_t p = 1; p < parts; ++p)
      for (int64_t i = 0; i < 2 * h; ++i) totals[i] += totals[2 * p * h + i];
    return {dx, has_sum ? dx : torch::Tensor(), sums[0][0].to(weight.dtype()),
            has_bias ? sums[0][1].to(weight.dtype()) : torch::Tensor(), torch::Tensor()};
  }
};

bool can_fuse(const torch::Tensor& x, const NormParams& params) {
  return has_kernels(x) && x.size(-1) % kLanes == 0 && x.numel() > 0 &&
         params.weight.scalar_type() == x.scalar_type();
}

}  // namespace

torch::Tensor norm(const torch::Tensor& x, const NormParams& params) {
  const auto& [weight, bias, epsilon] = params;
  if (can_fuse(x, params))
    return FusedNorm::apply(x, std::nullopt, weight, if_defined(bias), epsilon)[0];
  if (!bias.defined()) return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
  // In half precision LibTorch's sums over rows, the gradients of weight and bias, are of half
  // precision on the CPU.
  const torch::Dtype sums = x.is_cpu() ? at::toOpMathType(x.scalar_type()) : x.scalar_type();
  return at::layer_norm(x.to(sums), {x.size(-1)}, weight.to(sums), bias.to(sums), epsilon)
      .to(x.scalar_type());
}

SumAndNorm added_norm(const torch::Tensor& x, const torch::Tensor& y, const NormParams& params) {
  if (!can_fuse(x, params)) {
    const torch::Tensor sum = x + y;
    return {sum, norm(sum, params)};
  }
  const tensor_list both =
      FusedNorm::apply(x, std::optional(y), params.weight, if_defined(params.bias), params.epsilon);
  return {both[0], both[1]};
}

}  // namespace anymesh
