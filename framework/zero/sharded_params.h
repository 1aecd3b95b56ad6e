#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/zero/memory.h"
#include "framework/zero/offload/state_tensor.h"

namespace anymesh {

// Stage 3: a rank keeps its parts of the parameters. A unit's whole parameters exist only while the
// unit runs, forward or backward. Meanwhile the next unit's are being gathered and, if parts are on
// disk, the parts of the unit after it are being read.
//
// A parameter's tensor stays the same object. Its storage is emptied and refilled, and autograd's
// saved tensors see the refilled bytes. The layers see none of this.
class ShardedParams {
 public:
  // A parameter, without memory, and this rank's part of it, [ceil(n / dp)], padded.
  struct Shard {
    torch::Tensor param;
    StateTensor part;        // in memory or on disk
    std::vector<int> units;  // the stage's units that use it
  };
  ShardedParams() = default;
  // `chunks`: of each unit of the stage. Units of different ones do not follow one another.
  ShardedParams(std::vector<Shard> shards, std::vector<int> chunks, CommPtr dp);

  // Called around units; UnitObserver describes when.
  void before_forward(int unit);
  void after_forward(int unit) { release(unit); }
  void before_backward(int unit);
  void release_all();

  // Bytes of whole parameters and of the buffers that they are gathered in.
  const ByteGauge& in_flight() const { return in_flight_; }

 private:
  struct Unit {
    std::vector<size_t> shards;
    int64_t part_numel = 0;
    bool gathered = false;
  };
  // A unit's parts, being read into one buffer.
  struct Parts {
    int unit;
    torch::Tensor mine;  // [parts]
    std::vector<std::future<void>> pending;
  };
  struct Prefetch {
    int unit;
    torch::Tensor mine, all;  // [parts], [dp, parts]
    std::unique_ptr<Pending> pending;
    int64_t bytes() const { return static_cast<int64_t>(mine.nbytes() + all.nbytes()); }
  };

  void gather_and_look_ahead(int unit, int direction);
  void gather(int unit);
  void release(int unit);
  bool may_need(int unit) const;
  Parts start_read(int unit);
  torch::Tensor take_parts(int unit);
  void drop_ahead();
  Prefetch start_gather(int unit);
  void drop_prefetch();

  std::vector<Shard> shards_;
  std::vector<int> chunks_;
  CommPtr dp_;
  std::vector<Unit> units_;
  std::vector<int> users_;  // by shard: the gathered units that use it
  std::optional<Parts> ahead_;
  std::optional<Prefetch> prefetch_;
  ByteGauge in_flight_;
};

}  // namespace anymesh
