#include "framework/kernels/cuda/kernels.h"

#include <ATen/Functions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "framework/kernels/adamw_sweeps.h"

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

HeadTensor heads_of(const torch::Tensor& x) {
  if (!x.defined()) return {};
  TORCH_INTERNAL_ASSERT(x.is_cuda() && x.dim() == 4 && x.stride(3) == 1);
  return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

HeadRows rows_of(const HeadMoves& m) {
  return {.projected = out(m.qkv),
          .q = heads_of(m.q),
          .k = heads_of(m.k),
          .v = heads_of(m.v),
          .cos = in(m.cos),
          .sin = in(m.sin),
          .rows_of_tables = m.positions.defined() ? m.positions.const_data_ptr<int64_t>() : nullptr,
          .dtype = element_of({m.qkv, m.cos, m.sin}),
          .rows = m.qkv.size(0) * m.qkv.size(1),
          .positions = m.qkv.size(1),
          .groups = m.qkv.size(2),
          .group = m.qkv.size(3) - 2,
          .d = m.qkv.size(4),
          .half = m.cos.defined() ? m.cos.size(1) : 0};
}

VocabularyRows rows_of(const torch::Tensor& logits, int64_t real) {
  return {in(logits), element_of(logits), logits.size(0), logits.size(1), real};
}

}  // namespace

void cuda_adamw(const std::vector<AdamwTensors>& pieces,
                const AdamwCoefficients<double>& coefficients) {
  if (pieces.empty()) return;
  const torch::Tensor& rounded = pieces[0].rounded;
  const Element dtype = element_of(pieces[0].weight),
                rounded_to = rounded.defined() ? element_of(rounded) : dtype;
  TORCH_INTERNAL_ASSERT(dtype == Element::Float || dtype == Element::Double);
  std::vector<AdamwPiece> list;
  for (const AdamwTensors& p : pieces) {
    TORCH_INTERNAL_ASSERT(element_of({p.weight, p.gradient, p.exp_avg, p.exp_avg_sq}) == dtype &&
                          p.rounded.defined() == rounded.defined() &&
                          (!rounded.defined() || element_of(p.rounded) == rounded_to));
    list.push_back({out(p.weight), in(p.gradient), out(p.exp_avg), out(p.exp_avg_sq),
                    out(p.rounded), p.weight.numel()});
  }
  launch_adamw(list, dtype, rounded_to, coefficients, stream());
}

double cuda_sum_of_squares(const std::vector<torch::Tensor>& flats) {
  const Element dtype = element_of(flats[0]);
  std::vector<SquaresPiece> pieces;
  for (const torch::Tensor& flat : flats) {
    TORCH_INTERNAL_ASSERT(element_of(flat) == dtype);
    pieces.push_back({in(flat), flat.numel()});
  }
  const torch::Tensor parts =
      torch::empty({square_parts(pieces)}, flats[0].options().dtype(torch::kDouble));
  launch_squares(pieces, dtype, parts.data_ptr<double>(), stream());
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
  const torch::Tensor parts = torch::empty({kRowParts, 2, h}, n.moments.options());
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
  return parts;
}

bool cuda_multiplies_groups() {
  int device = 0, major = 0;
  C10_CUDA_CHECK(cudaGetDevice(&device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9 || major == 10;
}

torch::Tensor cuda_column_sums(const torch::Tensor& x) {
  const int64_t columns = x.size(-1);
  const torch::Tensor parts = torch::empty({kRowParts, columns}, x.options().dtype(torch::kFloat));
  launch_column_sums({in(x), parts.data_ptr<float>(), element_of(x), x.numel() / columns, columns},
                     stream());
  return parts;
}

void cuda_split_heads(const HeadMoves& moves) { launch_split_heads(rows_of(moves), stream()); }
void cuda_join_heads(const HeadMoves& moves) { launch_join_heads(rows_of(moves), stream()); }

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
