#pragma once

#include <utility>
#include <vector>

#include "framework/kernels/dropout.h"

namespace anymesh {

// A low-rank adapter adds to a linear layer, whose own matrix then stays as it is
// (arXiv:2106.09685):
//
//   y = x W^T + scaling (dropout(x) A^T) B^T        A [r, in], B [out, r]
//
// The layers' forward() with an adapter (layers.h) needs no communication of its own:
//
//   ColumnParallelLinear   A is whole on each rank, and B is cut along out, as W is. The adapter
//                          reads the input that W reads, so that one sum serves both backwards
//   RowParallelLinear      A is cut along in, as W is, and B is whole. The addend is part
//                          of a rank's partial sum of Y
//
// The whole one of the two has a partial gradient on each rank (ParamSpec::tp_sum).
//
// W may be several matrices in one, with an adapter for each of them, or for some. In each of
// `groups` groups of its rows, some are of the first matrix, some of the next, and so on.
class LoraAdapter {
 public:
  struct Part {
    int64_t rows;        // in a group, on this rank
    torch::Tensor a, b;  // [r, in], [groups * rows, r], one of them cut; undefined: no adapter
  };

  LoraAdapter() = default;  // none
  LoraAdapter(std::vector<Part> parts, int64_t groups, double scaling, double dropout,
              DropoutStream stream)
      : parts_(std::move(parts)),
        groups_(groups),
        scaling_(scaling),
        dropout_(dropout),
        stream_(stream) {}

  bool defined() const { return !parts_.empty(); }

  // dropout(x), for an x [b, ...] that begins at element `first` of a sample's.
  torch::Tensor drop(const torch::Tensor& x, const DropoutContext& context,
                     int64_t first = 0) const {
    return dropout(x, dropout_, context, stream_, first);
  }

  // The addend, from the dropped x: [b, s, in] -> [b, s, out].
  torch::Tensor addend(const torch::Tensor& x) const;

 private:
  std::vector<Part> parts_;
  int64_t groups_ = 1;
  double scaling_ = 1, dropout_ = 0;
  DropoutStream stream_;
};

// A layer with the adapter beside its matrix, which may be none.
template <class Layer>
struct Adapted {
  Layer layer;
  LoraAdapter adapter;

  torch::Tensor forward(const torch::Tensor& x, const DropoutContext& dropout) const {
    return layer.forward(x, adapter, dropout);
  }
};

}  // namespace anymesh
