#pragma once

#include <cstdint>

namespace anymesh {

// A rank's slice of a tensor, in rows of `width` elements. Row i starts at element
// i * stride + offset of the whole tensor.
struct Slice {
  int64_t width, stride, offset = 0;
};

// Writes `count` normally distributed numbers, for the slice's elements from `first` on. Each
// depends only on its place in the whole tensor and on the key. A deviation of 0 gives the mean.
void normal_numbers(const Slice& slice, int64_t first, int64_t count, double mean, double deviation,
                    uint64_t key, double* out);

}  // namespace anymesh
