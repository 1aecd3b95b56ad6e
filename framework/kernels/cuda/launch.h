#pragma once

#include <cstdint>

#include "framework/kernels/adamw.h"

struct CUstream_st;

namespace anymesh {

// The interface between kernels.cpp, which knows tensors, and the *.cu files, which include no
// LibTorch header: with one, nvcc would take more than a minute. kernels.h describes the kernels.

// Selects elements [first, first + n) of a sample's tensor. Element i is dropped if word i % 4 of
// Philox block {i / 4, stream, sample} is less than `least`; otherwise it is multiplied by `scale`.
struct DropoutKey {
  uint64_t seed;
  uint32_t stream;
  int64_t sample, first;
  uint32_t least;
  double scale;
};

enum class Element { Float, Double, Half, BFloat16 };

// All pointers are to n elements.
struct AdamwState {
  void* weight;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  Element dtype;  // the dtype of these four: Float or Double
  int64_t n;
  void* rounded;  // the weight as `rounded_to`, or null
  Element rounded_to;
};

void launch_adamw(const AdamwState& state, const AdamwCoefficients<double>& coefficients,
                  CUstream_st* stream);
constexpr int64_t kSquareParts = 256;
// Writes kSquareParts sums, whose sum is that of the squares of x [n]. x is Float or Double.
void launch_squares(const void* x, Element dtype, int64_t n, double* parts, CUstream_st* stream);
void launch_dropout(const void* x, void* y, Element dtype, int64_t n, const DropoutKey& key,
                    CUstream_st* stream);

// The kernels below take one row per block and all dtypes but Double. The void pointers of a struct
// point to elements of its dtype.

struct SwigluRows {
  const void* x;   // [rows, 2f]
  const void* dy;  // [rows, f]; only for backward
  void* out;       // [rows, f]; backward: dx [rows, 2f]
  Element dtype;
  int64_t rows, f;
};
void launch_swiglu(const SwigluRows& rows, CUstream_st* stream);
void launch_swiglu_backward(const SwigluRows& rows, CUstream_st* stream);

struct NormRows {
  const void *x, *y;          // [rows, h]; y null: the norm of x alone
  void* sum;                  // x + y, if there is a y
  const void *weight, *bias;  // [h]; bias null: RMSNorm
  void* normed;
  float* moments;  // [rows, 2]: the mean, and 1 / the deviation
  Element dtype;
  int64_t rows, h;
  float epsilon, offset;  // `offset` is added to the weight
};
void launch_norm(const NormRows& rows, CUstream_st* stream);

constexpr int64_t kNormParts = 64;  // parts of the rows; each sums its gradients of weights apart
struct NormGradients {
  const void *x, *dy, *dsum;  // [rows, h]; dsum may be null
  const void* weight;
  const float* moments;
  void* dx;
  float* parts;  // [kNormParts, 2, h]: gradients of weight and bias
  bool has_bias;
  Element dtype;
  int64_t rows, h;
  float offset;
};
void launch_norm_backward(const NormGradients& gradients, CUstream_st* stream);

struct VocabularyRows {
  const void* logits;  // [rows, columns]
  Element dtype;
  int64_t rows, columns, real;
};
void launch_row_sums(const VocabularyRows& rows, float* maxima, float* sums, CUstream_st* stream);
void launch_logits_gradient(const VocabularyRows& rows, const float* log_sums,
                            const int64_t* targets, const float* scales, void* gradient,
                            CUstream_st* stream);

}  // namespace anymesh
