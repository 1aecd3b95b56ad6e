#pragma once

#include <cstdint>

namespace anymesh {

// Numbers in whole units of 2^-shift. One is left out if it has more than `limit` bits.
struct Grid {
  int32_t shift = 0, limit = 62;
};

// Sets units [n], or adds to them, x [n] of T = float or c10::BFloat16, rounded; halves to even.
// Returns false if a number was left out: it is too large, or not finite.
template <class T>
bool add_units(const T* x, Grid grid, bool replaces, int64_t n, int64_t* units);

}  // namespace anymesh
