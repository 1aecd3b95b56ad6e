#pragma once

#include <torch/types.h>

#include <vector>

namespace anymesh {

// The two passes over flat fp32 (or float64) tensors that an optimizer step makes. Element by
// element, so where a tensor is cut into pieces changes no bit of what AdamW writes.

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

// One AdamW step (decoupled weight decay; arXiv:1711.05101) on 1-D tensors of equal length and
// dtype:
//
//   g = gradient * gradient_scale                  the clip coefficient
//   exp_avg = b1 exp_avg + (1 - b1) g              exp_avg_sq = b2 exp_avg_sq + (1 - b2) g^2
//   weight -= lr (exp_avg / c1 / (sqrt(exp_avg_sq / c2) + eps) + weight_decay weight)
//   with c1 = 1 - b1^step, c2 = 1 - b2^step
//
// `rounded`, if defined, becomes the weight in its own dtype.
void adamw_step(const torch::Tensor& weight, const torch::Tensor& gradient,
                const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                const AdamOptions& adam, int64_t step, double lr, double weight_decay,
                double gradient_scale, const torch::Tensor& rounded = {});

// flat [n] = x of n elements, in flat's dtype.
void widen(const torch::Tensor& x, const torch::Tensor& flat);

// In double, where the square of an fp32 number is exact. Of several, which may lie on a GPU, one
// sum.
double sum_of_squares(const torch::Tensor& flat);
double sum_of_squares(const std::vector<torch::Tensor>& flats);

}  // namespace anymesh
