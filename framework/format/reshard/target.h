#pragma once

#include <optional>
#include <string>

#include "framework/format/layout/experts.h"

namespace anymesh {

class Checkpoint;
struct ShardedCheckpoint;

// The mesh, ZeRO stage and precision that a checkpoint is cut for.
struct CheckpointMesh {
  int tp_size = 1, pp_size = 1, dp_size = 1, stage = 0;
  DType dtype = DType::kFloat32;  // of the model's weights
  int ep_size = 1;                // ranks that share the experts, out of dp
};
std::string to_string(const CheckpointMesh& mesh);  // "ZeRO 2, tp 1, pp 1, dp 6, bf16"

// Returns the mesh of the run that saved a checkpoint, or that a universal folder was made from.
CheckpointMesh mesh_of(const ShardedCheckpoint& source);
CheckpointMesh mesh_of(const Checkpoint& universal);

// The parts of a mesh that --target names. The others stay as they are in the source.
struct ReshardTarget {
  std::optional<int> tp_size, pp_size, dp_size, ep_size, stage;
  std::optional<DType> dtype;

  // Parses "dp=6,zero=1,dtype=bf16". Throws a UserError that shows the keys and their values.
  static ReshardTarget parse(const std::string& text);
  CheckpointMesh applied_to(CheckpointMesh mesh) const;
};

// Returns how the target spreads `experts`, the source's. Throws a UserError, which names a target
// that works, for one that DeepSpeed cannot train. `partitioned`: the source's optimizer is cut
// among dp ranks, as BF16_Optimizer's is at ZeRO 0.
ExpertSpread check_target(const Value& model_state, bool partitioned, const ExpertSpread& experts,
                          const CheckpointMesh& from, const CheckpointMesh& to);

}  // namespace anymesh
