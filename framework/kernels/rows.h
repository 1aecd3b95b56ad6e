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

}  // namespace anymesh
