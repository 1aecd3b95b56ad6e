#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace anymesh {

// Rows of sums in fp32 on their way to a tensor of T = float or c10::BFloat16, in the widest
// vectors there are.
constexpr int64_t kRowMultiple = 16;  // what `width` is a multiple of

// out = row * scale
template <class T>
void scaled(const float* row, float scale, int64_t width, T* out);

// out = a + b
void added(const float* a, const c10::BFloat16* b, int64_t width, c10::BFloat16* out);

// What attention does with rows of scores and weights. `factors`, dropout's, may be null. The
// greatest of a row.
float greatest(const float* row, int64_t width);

// out = exp(scale * row - shift), times the factors; returns the sum, without them.
template <class T>
float weights(const float* row, float scale, float shift, const float* factors, int64_t width,
              T* out);

// row = exp(scale * row - shift), dweights *= factors; returns their product's sum.
float meet(float* row, float scale, float shift, const float* factors, float* dweights,
           int64_t width);

// dscores = row * (dweights - mean) * scale; dropped = row * factors
template <class T>
void gradient(const float* row, const float* dweights, float mean, float scale,
              const float* factors, int64_t width, T* dscores, T* dropped);

}  // namespace anymesh
