#pragma once

#include <torch/types.h>

#include <vector>

#include "framework/kernels/cuda/launch.h"

namespace anymesh {

struct AdamwTensors;

// Our kernels for contiguous tensors of the current GPU, in its current stream. A build without
// CUDA has no kernels (absent.cpp) and no such tensors.

// These write the same bits as their twins on the CPU.
//
// adamw_step() of kernels/adamw_sweeps.h. The state is fp32 or float64, in all pieces alike.
void cuda_adamw(const std::vector<AdamwTensors>& pieces,
                const AdamwCoefficients<double>& coefficients);
// dropout() of kernels/dropout.h for one sample: x, y [n]
void cuda_dropout(const torch::Tensor& x, const torch::Tensor& y, const DropoutKey& key);

// sum_of_squares() of kernels/adamw_sweeps.h, in another order. Reads the result from the GPU once.
double cuda_sum_of_squares(const std::vector<torch::Tensor>& flats);

// These compute the same as their twins, in fp32 but in other orders, for fp32, fp16 and bf16.
//
// swiglu() of kernels/activation.h: x [..., 2f] -> y [..., f]; x, dy [..., f] -> dx
void cuda_swiglu(const torch::Tensor& x, const torch::Tensor& y);
void cuda_swiglu_backward(const torch::Tensor& x, const torch::Tensor& dy, const torch::Tensor& dx);

// norm() and added_norm() of kernels/norm.h, over rows of h elements. Without a bias it is RMSNorm.
struct NormForward {
  torch::Tensor x, y;  // y undefined: `sum` is x
  torch::Tensor weight, bias;
  double epsilon, offset;
  torch::Tensor sum, normed;  // written
  torch::Tensor moments;      // written: [rows, 2] in fp32, the mean and 1 / the deviation
};
void cuda_norm(const NormForward& norm);
struct NormBackward {
  torch::Tensor x, weight;  // x: the forward's sum
  double offset;
  torch::Tensor moments;
  bool has_bias;
  torch::Tensor dy, dsum;  // dsum may be undefined
  torch::Tensor dx;        // written
};
// [kRowParts, 2, h] in fp32, whose sums are the gradients of weight and bias
torch::Tensor cuda_norm_backward(const NormBackward& norm);

// [kRowParts, n] in fp32, whose sums are those of the columns of x [..., n]
torch::Tensor cuda_column_sums(const torch::Tensor& x);

// Whether LibTorch's _grouped_mm has a kernel for bf16 on the current GPU. Elsewhere it asks the GPU
// for the groups' sizes, and multiplies one by one.
bool cuda_multiplies_groups();

// split_heads() of kernels/heads.h: queries and keys, turned, out of qkv [b, s, k, g + 2, d], and
// back. `heads` may have any strides but the last, and undefined ones are left out.
struct HeadMoves {
  torch::Tensor qkv;
  torch::Tensor q, k, v;  // [b, k g, s, d], [b, k, s, d] x 2
  torch::Tensor cos, sin, positions;
};
void cuda_split_heads(const HeadMoves& moves);
void cuda_join_heads(const HeadMoves& moves);

// row_sums() and logits_gradient() of kernels/vocabulary_rows.h.
void cuda_row_sums(const torch::Tensor& logits, int64_t real, const torch::Tensor& maxima,
                   const torch::Tensor& sums);
void cuda_logits_gradient(const torch::Tensor& logits, int64_t real, const torch::Tensor& log_sums,
                          const torch::Tensor& targets, const torch::Tensor& scales,
                          const torch::Tensor& gradient);

}  // namespace anymesh
