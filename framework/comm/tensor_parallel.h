#pragma once

#include "framework/comm/communicator.h"

namespace anymesh {

// The ranks that share a layer, and how the hidden state lies between the layer's parts that tensor
// parallelism cuts:
//
//   sequence = false   [b, s, h] on every rank (Megatron-LM, arXiv:1909.08053)
//   sequence = true    [b, s/t, h]: rank r has positions [r * s/t, (r + 1) * s/t), and norms,
//                      dropouts and residuals are computed once, not t times (arXiv:2205.05198)
struct TensorParallel {
  CommPtr group;
  bool sequence = false;

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }

  // Into how many parts the sequence is cut, and which of them this rank has.
  int sequence_parts() const { return sequence ? size() : 1; }
  int sequence_part() const { return sequence ? rank() : 0; }
  // Which element of a sample's whole hidden state is the first of this rank's part `hidden`.
  int64_t first_element(const torch::Tensor& hidden) const {
    return sequence_part() * hidden.size(1) * hidden.size(2);
  }
};

}  // namespace anymesh
