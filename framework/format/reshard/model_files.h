#pragma once

#include "framework/format/reshard/optimizer_files.h"

namespace anymesh {

// Returns the model-states file of a model-parallel rank: the source's, with the keys that
// DeepSpeed derives from the mesh. Only ZeRO 3 has a file for each dp rank. Other keys, such as the
// scheduler's state and the client's, stay as they are.
Value model_states(const RankModel& rank, const CheckpointMesh& mesh, const Value& config,
                   const OptimizerFiles& optimizer, int dp_rank);

// Returns `config`, the source's ds_config, with the stage and the precision of the new mesh, and
// with as many gradient accumulation steps as keep its train_batch_size. Adds a note for the user
// if none does.
Value config_for(Value config, const CheckpointMesh& from, const CheckpointMesh& to,
                 std::vector<std::string>& notes);

}  // namespace anymesh
