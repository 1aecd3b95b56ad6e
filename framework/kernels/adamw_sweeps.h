#pragma once

#include <torch/types.h>

#include <vector>

#include "framework/optim/options.h"

namespace anymesh {

// The two passes that an optimizer step makes over flat fp32 (or float64) tensors. AdamW works
// element by element, so cutting a tensor into pieces changes no bit of its result.

// A piece of the state: 1-D tensors of equal length. All but `rounded` have one dtype, fp32 or
// float64. `rounded`, if defined, receives the weight in its own dtype.
struct AdamwTensors {
  torch::Tensor weight, gradient, exp_avg, exp_avg_sq, rounded;
};

// Makes one AdamW step (decoupled weight decay; arXiv:1711.05101) on all pieces, which are alike,
// on a CPU or a CUDA GPU:
//
//   g = gradient * gradient_scale                  the clip coefficient
//   exp_avg = b1 exp_avg + (1 - b1) g              exp_avg_sq = b2 exp_avg_sq + (1 - b2) g^2
//   weight -= lr (exp_avg / c1 / (sqrt(exp_avg_sq / c2) + eps) + weight_decay weight)
//   with c1 = 1 - b1^step, c2 = 1 - b2^step
void adamw_step(const std::vector<AdamwTensors>& pieces, const AdamOptions& adam, int64_t step,
                double lr, double weight_decay, double gradient_scale);

// flat [n] = x, with n elements, in flat's dtype.
void widen(const torch::Tensor& x, const torch::Tensor& flat);

// Returns the sum in double, where the square of an fp32 number is exact. The tensors of the second
// form may lie on a GPU.
double sum_of_squares(const torch::Tensor& flat);
double sum_of_squares(const std::vector<torch::Tensor>& flats);

}  // namespace anymesh
