#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

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

// The optimizer's passes over lists of pieces, of which one launch takes many.
struct AdamwPiece {  // all pointers are to n elements
  void* weight;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  void* rounded;  // the weight in another dtype, or null
  int64_t n;
};
// The state is Float or Double. `rounded_to` is the dtype of `rounded`, if the pieces have one.
void launch_adamw(const std::vector<AdamwPiece>& pieces, Element dtype, Element rounded_to,
                  const AdamwCoefficients<double>& coefficients, CUstream_st* stream);

struct SquaresPiece {
  const void* x;  // n elements, Float or Double
  int64_t n;
};
int64_t square_parts(const std::vector<SquaresPiece>& pieces);
// Writes square_parts() sums, whose sum is that of all squares.
void launch_squares(const std::vector<SquaresPiece>& pieces, Element dtype, double* parts,
                    CUstream_st* stream);

void launch_dropout(const void* x, void* y, Element dtype, int64_t n, const DropoutKey& key,
                    CUstream_st* stream);

// The kernels below work on rows, of all dtypes but Double. The void pointers of a struct
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

constexpr int64_t kRowParts = 64;  // parts of the rows, whose sums are apart
struct NormGradients {
  const void *x, *dy, *dsum;  // [rows, h]; dsum may be null
  const void* weight;
  const float* moments;
  void* dx;
  float* parts;  // [kRowParts, 2, h]: gradients of weight and bias
  bool has_bias;
  Element dtype;
  int64_t rows, h;
  float offset;
};
void launch_norm_backward(const NormGradients& gradients, CUstream_st* stream);

struct ColumnSums {
  const void* x;  // [rows, columns]
  float* parts;   // [kRowParts, columns]: the sums of each column over parts of the rows
  Element dtype;
  int64_t rows, columns;
};
void launch_column_sums(const ColumnSums& sums, CUstream_st* stream);

// Heads [b, heads, s, d] of any strides, in elements; the elements of a head lie side by side.
struct HeadTensor {
  void* at = nullptr;
  int64_t of_sample = 0, of_head = 0, of_position = 0;
  int64_t unit() const { return std::gcd(std::gcd(of_sample, of_head), of_position); }
};
struct HeadRows {
  void* projected;        // [b, s, groups, group + 2, d]: a group's queries, its key and its value
  HeadTensor q, k, v;     // groups * group heads, groups, groups; null ones are left out
  const void *cos, *sin;  // [.., half]: turns the first 2 half elements of q and k
  const int64_t* rows_of_tables;  // [b, s]: rows of cos and sin; null: 0 to s - 1
  Element dtype;
  int64_t rows, positions;  // b s and s
  int64_t groups, group, d, half;
};
void launch_split_heads(const HeadRows& rows, CUstream_st* stream);  // writes heads
void launch_join_heads(const HeadRows& rows, CUstream_st* stream);   // writes `projected`

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
