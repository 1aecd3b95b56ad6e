#include "framework/kernels/cuda/kernels.h"

#include <ATen/Functions.h>
#include <c10/cuda/CUDAStream.h>

namespace anymesh {
namespace {

Element element_of(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.is_cuda() && t.is_contiguous());
  switch (t.scalar_type()) {
    case torch::kFloat:
      return Element::Float;
    case torch::kDouble:
      return Element::Double;
    case torch::kHalf:
      return Element::Half;
    case torch::kBFloat16:
      return Element::BFloat16;
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", t.scalar_type());
  }
}

// Pointers for a kernel to read and to write; null for an undefined tensor.
const void* in(const torch::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
void* out(const torch::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

// Returns the dtype of all tensors that are defined.
Element element_of(std::initializer_list<torch::Tensor> tensors) {
  const Element element = element_of(*tensors.begin());
  for (const torch::Tensor& t : tensors)
    TORCH_INTERNAL_ASSERT(!t.defined() || element_of(t) == element);
  return element;
}

CUstream_st* stream() { return c10::cuda::getCurrentCUDAStream(); }

VocabularyRows rows_of(const torch::Tensor& logits, int64_t real) {
  return {in(logits), element_of(logits), logits.size(0), logits.size(1), real};
}

}  // namespace

void cuda_adamw(const torch::Tensor& weight, const torch::Tensor& gradient,
                const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                const AdamwCoefficients<double>& coefficients, const torch::Tensor& rounded) {
  const Element dtype = element_of({weight, gradient, exp_avg, exp_avg_sq});
  TORCH_INTERNAL_ASSERT(dtype == Element::Float || dtype == Element::Double);
  launch_adamw({.weight = weight.data_ptr(),
                .gradient = gradient.const_data_ptr(),
                .exp_avg = exp_avg.data_ptr(),
                .exp_avg_sq = exp_avg_sq.data_ptr(),
                .dtype = dtype,
                .n = weight.numel(),
                .rounded = out(rounded),
                .rounded_to = rounded.defined() ? element_of(rounded) : dtype},
               coefficients, stream());
}

double cuda_sum_of_squares(const std::vector<torch::Tensor>& flats) {
  const torch::Tensor parts = torch::empty({static_cast<int64_t>(flats.size()), kSquareParts},
                                           flats[0].options().dtype(torch::kDouble));
  for (size_t i = 0; i < flats.size(); ++i)
    launch_squares(in(flats[i]), element_of(flats[i]), flats[i].numel(),
                   parts.data_ptr<double>() + static_cast<int64_t>(i) * kSquareParts, stream());
  return parts.sum().item<double>();
}

void cuda_dropout(const torch::Tensor& x, const torch::Tensor& y, const DropoutKey& key) {
  TORCH_INTERNAL_ASSERT(element_of(x) == element_of(y) && x.numel() == y.numel());
  launch_dropout(x.const_data_ptr(), y.data_ptr(), element_of(y), x.numel(), key, stream());
}

void cuda_swiglu(const torch::Tensor& x, const torch::Tensor& y) {
  const int64_t f = y.size(-1);
  launch_swiglu({in(x), nullptr, out(y), element_of({x, y}), y.numel() / f, f}, stream());
}

void cuda_swiglu_backward(const torch::Tensor& x, const torch::Tensor& dy,
                          const torch::Tensor& dx) {
  const int64_t f = dy.size(-1);
  launch_swiglu_backward({in(x), in(dy), out(dx), element_of({x, dy, dx}), dy.numel() / f, f},
                         stream());
}

void cuda_norm(const NormForward& n) {
  const int64_t h = n.x.size(-1);
  launch_norm({.x = in(n.x),
               .y = in(n.y),
               .sum = out(n.sum),
               .weight = in(n.weight),
               .bias = in(n.bias),
               .normed = out(n.normed),
               .moments = n.moments.data_ptr<float>(),
               .dtype = element_of({n.x, n.y, n.sum, n.weight, n.bias, n.normed}),
               .rows = n.x.numel() / h,
               .h = h,
               .epsilon = static_cast<float>(n.epsilon),
               .offset = static_cast<float>(n.offset)},
              stream());
}

torch::Tensor cuda_norm_backward(const NormBackward& n) {
  const int64_t h = n.x.size(-1);
  const torch::Tensor parts = torch::empty({kNormParts, 2, h}, n.moments.options());
  launch_norm_backward({.x = in(n.x),
                        .dy = in(n.dy),
                        .dsum = in(n.dsum),
                        .weight = in(n.weight),
                        .moments = n.moments.const_data_ptr<float>(),
                        .dx = out(n.dx),
                        .parts = parts.data_ptr<float>(),
                        .has_bias = n.has_bias,
                        .dtype = element_of({n.x, n.dy, n.dsum, n.weight, n.dx}),
                        .rows = n.x.numel() / h,
                        .h = h,
                        .offset = static_cast<float>(n.offset)},
                       stream());
  return parts.sum(0);
}

void cuda_row_sums(const torch::Tensor& logits, int64_t real, const torch::Tensor& maxima,
                   const torch::Tensor& sums) {
  launch_row_sums(rows_of(logits, real), maxima.data_ptr<float>(), sums.data_ptr<float>(),
                  stream());
}

void cuda_logits_gradient(const torch::Tensor& logits, int64_t real, const torch::Tensor& log_sums,
                          const torch::Tensor& targets, const torch::Tensor& scales,
                          const torch::Tensor& gradient) {
  launch_logits_gradient(rows_of(logits, real), log_sums.const_data_ptr<float>(),
                         targets.const_data_ptr<int64_t>(), scales.const_data_ptr<float>(),
                         out(gradient), stream());
}

}  // namespace anymesh
