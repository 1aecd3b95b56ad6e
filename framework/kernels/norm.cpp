#include "framework/kernels/norm.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/gradient_sink.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kParts = 64;  // parts of the rows; each sums its gradients of weights apart

struct Moments {
  float mean, inverse;  // 1 / the deviation
};

// Writes the norm y [h] of x [h]. Without a bias the mean counts as 0.
template <class T>
Moments norm_row(const T* x, const T* weight, float offset, const T* bias, float epsilon, int64_t h,
                 T* y) {
  return with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
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
      const Lanes normed =
          (load<Lanes>(x + i) - mean) * inverse * (load<Lanes>(weight + i) + offset);
      store(y + i, bias ? normed + load<Lanes>(bias + i) : normed);
    }
    return Moments{mean, inverse};
  });
}

// Writes dx [h], plus `dsum` if there is one, and adds to the gradients of weight and bias.
template <class T>
void norm_backward_row(const T* x, const T* dy, const T* dsum, const T* weight, float offset,
                       Moments moments, int64_t h, T* dx, float* dweight, float* dbias) {
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    const auto n = static_cast<float>(h);
    Lanes total, with_x;
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes normed = (load<Lanes>(x + i) - moments.mean) * moments.inverse,
                  d = load<Lanes>(dy + i), scaled = d * (load<Lanes>(weight + i) + offset);
      total += scaled;
      with_x += scaled * normed;
      store(dweight + i, load<Lanes>(dweight + i) + d * normed);
      if (dbias) store(dbias + i, load<Lanes>(dbias + i) + d);
    }
    const float mean = dbias ? sum(total) / n : 0, slope = sum(with_x) / n;
    for (int64_t i = 0; i < h; i += kLanes) {
      const Lanes normed = (load<Lanes>(x + i) - moments.mean) * moments.inverse,
                  scaled = load<Lanes>(dy + i) * (load<Lanes>(weight + i) + offset),
                  d = (scaled - mean - normed * slope) * moments.inverse;
      store(dx + i, dsum ? d + load<Lanes>(dsum + i) : d);
    }
  });
}

template <class T>
void add_row(const T* x, const T* y, int64_t h, T* sum) {
  with_widest_simd([=]<class Lanes>(Lanes) ANYMESH_INLINE_LAMBDA {
    for (int64_t i = 0; i < h; i += kLanes) store(sum + i, load<Lanes>(x + i) + load<Lanes>(y + i));
  });
}

template <class T>
const T* data(const torch::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

void norm_rows(const NormForward& n) {
  const int64_t h = n.x.size(-1), rows = n.x.numel() / h;
  const torch::Tensor weight = computed(n.weight), bias = computed(n.bias);
  for_rows(n.x, rows, std::max<int64_t>(1, kGrain / h), [&]<class T>(int64_t row, T) {
    const int64_t at = row * h;
    if (n.y.defined()) add_row(data<T>(n.x) + at, data<T>(n.y) + at, h, n.sum.data_ptr<T>() + at);
    const Moments moments =
        norm_row(data<T>(n.sum) + at, data<T>(weight), static_cast<float>(n.offset), data<T>(bias),
                 static_cast<float>(n.epsilon), h, n.normed.data_ptr<T>() + at);
    float* kept = n.moments.data_ptr<float>() + 2 * row;
    kept[0] = moments.mean;
    kept[1] = moments.inverse;
  });
}

// [p, 2, h], parts of the gradients of weight and bias; one, unless the weight's sink wants several
torch::Tensor norm_backward_rows(const NormBackward& n) {
  const int64_t h = n.x.size(-1), rows = n.x.numel() / h, fixed = rows_of_part(n.weight),
                part = fixed > 0 ? fixed : (rows + kParts - 1) / kParts,
                parts = (rows + part - 1) / part;
  const torch::Tensor sums = torch::zeros({parts, 2, h}, torch::kFloat),
                      weight = computed(n.weight);
  float* totals = sums.data_ptr<float>();
  for_rows(n.x, parts, std::max<int64_t>(1, kGrain / (part * h)), [&]<class T>(int64_t p, T) {
    float* dweight = totals + 2 * p * h;
    for (int64_t row = p * part; row < std::min(rows, (p + 1) * part); ++row) {
      const int64_t at = row * h;
      const float* moments = n.moments.const_data_ptr<float>() + 2 * row;
      norm_backward_row(data<T>(n.x) + at, data<T>(n.dy) + at,
                        n.dsum.defined() ? data<T>(n.dsum) + at : nullptr, data<T>(weight),
                        static_cast<float>(n.offset), {moments[0], moments[1]}, h,
                        n.dx.data_ptr<T>() + at, dweight, n.has_bias ? dweight + h : nullptr);
    }
  });
  if (fixed > 0) return sums;
  for (int64_t p = 1; p < parts; ++p)
    for (int64_t i = 0; i < 2 * h; ++i) totals[i] += totals[2 * p * h + i];
  return sums.narrow(0, 0, 1);
}

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  // Returns {norm} of x; {x, norm} if `keeps`; {x + y, norm} if there is a y.
  static tensor_list forward(AutogradContext* ctx, const torch::Tensor& input,
                             const std::optional<torch::Tensor>& other, const torch::Tensor& weight,
                             const std::optional<torch::Tensor>& bias, double epsilon,
                             double offset, bool keeps = false) {
    RECORD_FUNCTION("anymesh::norm", (std::array<c10::IValue, 2>{input, weight}));
    const torch::Tensor x = computed(input.contiguous());
    const NormForward n{
        .x = x,
        .y = other ? other->contiguous() : torch::Tensor(),
        .weight = weight,
        .bias = bias.value_or(torch::Tensor()),
        .epsilon = epsilon,
        .offset = offset,
        .sum = other ? torch::empty_like(x) : x,
        .normed = torch::empty_like(x),
        .moments = torch::empty({x.numel() / x.size(-1), 2}, x.options().dtype(torch::kFloat))};
    (x.is_cuda() ? cuda_norm : norm_rows)(n);
    ctx->set_materialize_grads(false);
    const torch::Tensor sum = n.sum.to(input.scalar_type()),
                        normed = n.normed.to(input.scalar_type());
    ctx->save_for_backward({sum, weight, n.moments, n.bias});
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["added"] = other.has_value();
    return other || keeps ? tensor_list{sum, normed} : tensor_list{normed};
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    RECORD_FUNCTION("anymesh::norm_backward", (std::array<c10::IValue, 1>{grads.back()}));
    const auto saved = ctx->get_saved_variables();
    const bool has_sum = grads.size() == 2;
    const bool added = ctx->saved_data["added"].toBool();
    if (!grads.back().defined())
      return {grads[0], added ? grads[0] : torch::Tensor(), {}, {}, {}, {}, {}};
    const torch::Tensor x = computed(saved[0]);
    const NormBackward n{
        .x = x,
        .weight = saved[1],
        .offset = ctx->saved_data["offset"].toDouble(),
        .moments = saved[2],
        .has_bias = saved[3].defined(),
        .dy = computed(grads.back().contiguous()),
        .dsum = has_sum && grads[0].defined() ? computed(grads[0].contiguous()) : torch::Tensor(),
        .dx = torch::empty_like(x)};
    const torch::Tensor parts = (n.x.is_cuda() ? cuda_norm_backward : norm_backward_rows)(n);
    const torch::Tensor dx = n.dx.to(saved[0].scalar_type());
    return {dx,
            added ? dx : torch::Tensor(),
            gradient_of_parts(parts.select(1, 0), n.weight),
            n.has_bias ? gradient_of_parts(parts.select(1, 1), saved[3]) : torch::Tensor(),
            torch::Tensor(),
            torch::Tensor(),
            torch::Tensor()};
  }
};

bool can_fuse(const torch::Tensor& x, const NormParams& params) {
  return has_kernels(x) && (x.is_cuda() || x.size(-1) % kLanes == 0) && x.numel() > 0 &&
         params.weight.scalar_type() == x.scalar_type();
}

}  // namespace

torch::Tensor norm(const torch::Tensor& x, const NormParams& params) {
  const auto& [weight, bias, epsilon, offset] = params;
  if (can_fuse(x, params))
    return FusedNorm::apply(x, std::nullopt, weight, if_defined(bias), epsilon, offset)[0];
  if (offset != 0) return norm(x, {weight + offset, bias, epsilon});
  if (!bias.defined()) return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
  // In half precision on the CPU, LibTorch also sums the gradients of weight and bias over rows in
  // half precision. This uses fp32.
  const torch::Dtype sums = x.is_cpu() ? at::toOpMathType(x.scalar_type()) : x.scalar_type();
  return at::layer_norm(x.to(sums), {x.size(-1)}, weight.to(sums), bias.to(sums), epsilon)
      .to(x.scalar_type());
}

SumAndNorm added_norm(const torch::Tensor& x, const torch::Tensor& y, const NormParams& params) {
  if (!can_fuse(x, params) || !computed(x).is_same(x)) {
    const torch::Tensor sum = x + y;
    return {sum, norm(sum, params)};
  }
  const tensor_list both = FusedNorm::apply(x, std::optional(y), params.weight,
                                            if_defined(params.bias), params.epsilon, params.offset);
  return {both[0], both[1]};
}

SumAndNorm kept_norm(const torch::Tensor& x, const NormParams& params) {
  if (!x.is_cuda() || !can_fuse(x, params)) return {x, norm(x, params)};
  const tensor_list both = FusedNorm::apply(x, std::nullopt, params.weight, if_defined(params.bias),
                                            params.epsilon, params.offset, /*keeps=*/true);
  return {both[0], both[1]};
}

}  // namespace anymesh
