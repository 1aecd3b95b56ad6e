#pragma once

#include <cstdint>

#include "framework/optim/adamw.h"

struct CUstream_st;

namespace anymesh {

// Between kernels.cpp, which knows tensors, and kernels.cu, which includes no header of LibTorch's:
// with one it would take nvcc more than a minute.

// Of a sample's tensor, elements [first, first + n): element i falls if word i % 4 of Philox block
// {i / 4, stream, sample} is less than `least`, and is multiplied by `scale` if not.
struct DropoutKey {
  uint64_t seed;
  uint32_t stream;
  int64_t sample, first;
  uint32_t least;
  double scale;
};

enum class Element { Float, Double, Half, BFloat16 };

struct Elements {
  void* data;  // null: none
  Element dtype;
};

// All four of `dtype`, Float or Double, and of n elements.
struct AdamwState {
  void* weight;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  Element dtype;
  int64_t n;
};

void launch_adamw(const AdamwState& state, const AdamwCoefficients<double>& coefficients,
                  Elements rounded, CUstream_st* stream);
void launch_dropout(const void* x, Elements y, int64_t n, const DropoutKey& key,
                    CUstream_st* stream);

}  // namespace anymesh
