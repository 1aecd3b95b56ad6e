#pragma once

#include <cstddef>
#include <span>

#include "framework/checkpoint/format/dtype.h"

namespace anymesh {

// The numbers of a tensor's bytes, `to.size()` of them, of any dtype that is not complex: exact but
// for integers and float64s that `to` is too narrow for, which are rounded.
void to_floats(DType dtype, std::span<const std::byte> from, std::span<float> to);
void to_doubles(DType dtype, std::span<const std::byte> from, std::span<double> to);

// Whether every value of the dtype is a double.
bool fits_double(DType dtype);

}  // namespace anymesh
