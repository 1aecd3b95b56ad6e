#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace anymesh {

// Operations on rows of fp32 sums, on their way to a tensor of T = float or c10::BFloat16, in the
// widest vectors of the CPU.
constexpr int64_t kRowMultiple = 16;  // `width` is a multiple of this

// out = row * scale
template <class T>
void scale_row(const float* row, float scale, int64_t width, T* out);

// out += row, of any width
template <class T>
void add_row(const T* row, int64_t width, float* out);

// out = row + bias
template <class T>
void add_bias_row(const float* row, const T* bias, int64_t width, T* out);

// Attention's operations on rows of scores and weights. `factors` are dropout's and may be null.
//
// Returns the greatest element of a row.
float row_max(const float* row, int64_t width);

// out = exp(scale * row - shift), times the factors. Returns the sum without them.
template <class T>
float exp_row(const float* row, float scale, float shift, const float* factors, int64_t width,
              T* out);

// row = exp(scale * row - shift), dweights *= factors. Returns the sum of row * dweights.
float softmax_backward_sum(float* row, float scale, float shift, const float* factors,
                           float* dweights, int64_t width);

// dscores = row * (dweights - mean) * scale; dropped = row * factors
template <class T>
void softmax_backward_row(const float* row, const float* dweights, float mean, float scale,
                          const float* factors, int64_t width, T* dscores, T* dropped);

}  // namespace anymesh
