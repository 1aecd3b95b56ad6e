// Shuffles as numpy.random.RandomState does, so that data is read in the order of numpy-based
// trainers.
//
//   std::mt19937 rng(1234);      // the state of RandomState(1234)
//   numpy_shuffle(values, rng);  // RandomState.shuffle(values)
//
// std::mt19937 is bit for bit numpy's generator and seeding. The shuffle is Fisher-Yates from the
// back. It draws an index by masking 32 random bits and rejecting values that are too large. At
// most 2^32 values.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace anymesh {

// Returns a uniform integer in [0, max].
inline uint32_t numpy_interval(uint32_t max, std::mt19937& rng) {
  if (max == 0) return 0;  // numpy draws nothing here
  const uint32_t mask = ~uint32_t{0} >> std::countl_zero(max);
  uint32_t value;
  do {
    value = static_cast<uint32_t>(rng()) & mask;
  } while (value > max);
  return value;
}

template <class T>
void numpy_shuffle(std::span<T> values, std::mt19937& rng) {
  for (size_t i = values.size(); i-- > 1;)
    std::swap(values[i], values[numpy_interval(static_cast<uint32_t>(i), rng)]);
}

}  // namespace anymesh
