#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "framework/checkpoint/format/shard_layout.h"
#include "framework/comm/communicator.h"
#include "framework/offload/state_tensor.h"

namespace anymesh {

// Tensors of which every rank of a group holds a part, for its rank 0 to write to files: each is
// put together when it is read, and only the one that was read last is in memory, there alone.
//
//   GatheredTensors weights(grid.dp);
//   const TensorRecord record = weights.add({...});                  // on all ranks alike
//   weights.serve([&] { write_torch_file("weights.pt", record); });  // rank 0 works, others send
//
// What the work throws, rank 0 throws once the others are released. They return as if all went
// well, or throw what kept them from reading their own parts, once all is done.
class GatheredTensors {
 public:
  // Elements [begin, begin + count) of one slice of the whole, which `rank` holds.
  struct Part {
    int rank;
    ShardLayout layout;
    int64_t begin, count;
  };
  struct Tensor {
    torch::Dtype dtype;
    Shape shape;
    std::vector<Part> parts;  // on rank 0; together every element once
    StateTensor mine;         // this rank's part; undefined: none
  };

  explicit GatheredTensors(CommPtr comm);
  TensorRecord add(Tensor tensor);
  void serve(const std::function<void()>& work);
  double seconds() const;  // that rank 0 took so far to put tensors together

 private:
  struct State;
  std::shared_ptr<State> state_;  // outlives this object where records do
};

}  // namespace anymesh
