#pragma once

#include <cstddef>
#include <span>

#include "framework/format/torch_file/dtype.h"

namespace anymesh {

// Converts `to.size()` elements of any dtype that is not complex. Integers and float64s that do not
// fit `to` exactly are rounded; all other values are exact.
void to_floats(DType dtype, std::span<const std::byte> from, std::span<float> to);
void to_doubles(DType dtype, std::span<const std::byte> from, std::span<double> to);

// Rounds numbers to float16 or bfloat16, to nearest even, or copies them to float32.
void from_floats(std::span<const float> from, DType dtype, std::span<std::byte> to);

// Returns whether a double holds every value of the dtype exactly.
bool fits_double(DType dtype);

}  // namespace anymesh
