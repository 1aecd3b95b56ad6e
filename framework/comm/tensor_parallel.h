#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// The ranks that share a layer, and the layout of the hidden state between the layer's
// tensor-parallel parts:
//
//   sequence = false   [b, s, h] on every rank (Megatron-LM, arXiv:1909.08053)
//   sequence = true    [b, s/t, h]: rank r has positions [r * s/t, (r + 1) * s/t), and norms,
//                      dropouts and residuals are computed once, not t times (arXiv:2205.05198)
struct TensorParallel {
  CommPtr group;
  bool sequence = false;
  int blocks = 0;  // of --same-bits: every sum over ranks is a sum of so many blocks, in a tree

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }

  int blocks_here() const { return blocks / size(); }

  // The number of parts into which the sequence is cut, and the index of this rank's part.
  int sequence_parts() const { return sequence ? size() : 1; }
  int sequence_part() const { return sequence ? rank() : 0; }
  // The index, in a sample's whole hidden state, of the first element of this rank's part `hidden`.
  int64_t first_element(const torch::Tensor& hidden) const {
    return sequence_part() * hidden.size(1) * hidden.size(2);
  }
};

}  // namespace anymesh
