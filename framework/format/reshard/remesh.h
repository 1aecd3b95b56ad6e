#pragma once

#include <string>
#include <vector>

#include "framework/format/reshard/rank_model.h"
#include "framework/format/reshard/whole_model.h"

namespace anymesh {

// Returns the ranks of the mesh `to`, by mp rank. A change of tp or pp needs a model of
// Megatron-DeepSpeed or of this program: their names tell a parameter's layer, and their files how
// tp cuts it. Notes for the user are added to `notes`.
std::vector<RankModel> remeshed(const WholeModel& model, const CheckpointMesh& to,
                                std::vector<std::string>& notes);

}  // namespace anymesh
