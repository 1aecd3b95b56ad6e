#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "framework/format/torch_file/dtype.h"

namespace anymesh {

// Converts `to.size()` elements of any dtype that is not complex. Integers and float64s that do not
// fit `to` exactly are rounded; all other values are exact.
void to_floats(DType dtype, std::span<const std::byte> from, std::span<float> to);
void to_doubles(DType dtype, std::span<const std::byte> from, std::span<double> to);

// Rounds to the nearest float32, float16 or bfloat16, ties to even, as torch does. Float16 has
// infinities beyond 65504 and a half step. All NaNs get the same bits.
uint16_t to_half(float value);
uint16_t to_bfloat16(float value);
void from_floats(DType dtype, std::span<const float> from, std::span<std::byte> to);

// Returns whether a double holds every value of the dtype exactly.
bool fits_double(DType dtype);

}  // namespace anymesh
