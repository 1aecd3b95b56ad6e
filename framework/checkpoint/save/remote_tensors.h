#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/format/layout.h"
#include "framework/zero/offload/state_tensor.h"

namespace anymesh {

// Tensors split over the ranks of a group, for rank 0 to write to files. Rank 0 assembles a tensor
// when it is read. Only the last tensor read is in memory, and only on rank 0.
//
//   RemoteTensors weights(grid.dp);
//   const TensorRecord record = weights.add({...});                  // the same on all ranks
//   weights.serve([&] { write_torch_file("weights.pt", record); });  // rank 0 works, others send
//
// If the work throws, rank 0 rethrows once the other ranks are released, and they return normally.
// A rank that could not read its own parts throws that error once all work is done.
class RemoteTensors {
 public:
  // Elements [begin, begin + count) of one slice of the tensor, held by `rank`.
  struct Part {
    int rank;
    ShardLayout layout;
    int64_t begin, count;
  };
  struct Tensor {
    torch::Dtype dtype;
    Shape shape;
    std::vector<Part> parts;  // used on rank 0; together they cover each element once
    StateTensor mine;         // this rank's part; undefined if it has none
  };

  explicit RemoteTensors(CommPtr comm);
  TensorRecord add(Tensor tensor);
  void serve(const std::function<void()>& work);
  double seconds() const;  // spent by rank 0 so far on assembling tensors

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the records, which may outlive this object
};

}  // namespace anymesh
