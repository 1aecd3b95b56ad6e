#pragma once

#include <torch/types.h>

#include "framework/kernels/units.h"

namespace anymesh {

// The products of a linear layer on the CPU whose bits depend on nothing but the elements' own
// factors (--same-bits): not on the number of rows or columns here, nor on threads. fp32, bf16 and
// fp16; sums are in fp32. Rows are [.., k], W is [n, k].
//
// Two of them have an inner dimension that tensor parallelism cuts. It lies in `blocks`, a power of
// two, of which a rank has some; each is summed apart, and they are added as a binary tree. The
// result is in fp32. The ranks' results, added as a binary tree, are the whole sum.
//
//   fixed_y            x [.., k] W^T + b -> [.., n]; b may be undefined
//   fixed_dw           dy^T x -> [n, k]
//   fixed_y_in_blocks  x [.., k] W^T -> [.., n]; k lies as [blocks, k / blocks]
//   fixed_dx_in_blocks dy [.., n] W -> [.., k]; n lies as [parts, blocks, n / parts / blocks]
torch::Tensor fixed_y(const torch::Tensor& x, const torch::Tensor& weight,
                      const torch::Tensor& bias);
torch::Tensor fixed_dw(const torch::Tensor& dy, const torch::Tensor& x);
// Sets units [n, k] of a sum of gradients, or adds to them, dy^T x of each sample, of dy [b, s, n]
// and x [b, s, k], in fp32. Returns false if an element was left out.
bool fixed_dw_units(const torch::Tensor& dy, const torch::Tensor& x, Grid grid, bool replaces,
                    int64_t* units);
torch::Tensor fixed_y_in_blocks(const torch::Tensor& x, const torch::Tensor& weight,
                                int64_t blocks);
torch::Tensor fixed_dx_in_blocks(const torch::Tensor& dy, const torch::Tensor& weight,
                                 int64_t blocks, int64_t parts);
// dy [.., n] W -> [.., k], for an n that is not cut
torch::Tensor fixed_dx(const torch::Tensor& dy, const torch::Tensor& weight);

// The sums of each `rows` rows of x [.., n], row after row -> [p, n] in fp32
torch::Tensor fixed_row_sums(const torch::Tensor& x, int64_t rows);

}  // namespace anymesh
