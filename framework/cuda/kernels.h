#pragma once

#include <torch/types.h>

#include "framework/cuda/launch.h"

namespace anymesh {

// Our kernels for contiguous tensors of the current GPU, in its current stream, each beside a
// function of the CPU that writes the same bits. A build without CUDA has none (absent.cpp), nor
// such tensors.

// adamw_step() of optim/sweeps.h. The state is fp32 or float64; `rounded` may be undefined.
void cuda_adamw(const torch::Tensor& weight, const torch::Tensor& gradient,
                const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                const AdamwCoefficients<double>& coefficients, const torch::Tensor& rounded);

// dropout() of random/dropout.h for one sample: x, y [n]
void cuda_dropout(const torch::Tensor& x, const torch::Tensor& y, const DropoutKey& key);

}  // namespace anymesh
