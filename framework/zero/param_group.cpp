#include "framework/zero/param_group.h"

#include <algorithm>

namespace anymesh {

// A piece in memory for good is cut from itself, others from the block.
void ParamGroup::sweep(Streamer& streamer, Uses uses,
                       const std::function<void(const Window&)>& work) const {
  const std::vector<Streamer::Stream> streams{{weights, uses.weights},
                                              {master, uses.masters},
                                              {exp_avg, uses.moments},
                                              {exp_avg_sq, uses.moments}};
  streamer.sweep(streams, layout.partition_numel(), [&](const Streamer::Block& block) {
    for (const Piece& piece : pieces) {
      const int64_t from = std::max(piece.partition_start, block.begin),
                    to = std::min(piece.partition_start + piece.numel(), block.end);
      if (from >= to) continue;
      const auto own = [&](const torch::Tensor& t) {
        return t.narrow(0, from - piece.partition_start, to - from);
      };
      const auto part = [&](size_t stream) {
        const torch::Tensor& t = block.tensors[stream];
        return t.defined() ? t.narrow(0, from - block.begin, to - from) : t;
      };
      const torch::Tensor weight = weights.defined() ? part(0) : own(piece.weight.tensor());
      work({.gradient = own(piece.gradient),
            .weight = weight,
            .master = master.defined() ? part(1) : weight,
            .exp_avg = part(2),
            .exp_avg_sq = part(3)});
    }
  });
}

}  // namespace anymesh
