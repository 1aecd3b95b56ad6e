#pragma once

#include <filesystem>
#include <vector>

#include "framework/format/reshard/rank_model.h"
#include "framework/format/whole/checkpoint_reader.h"

namespace anymesh {

// A checkpoint as whole tensors, to be cut for another tp and pp: an ordinary one or a universal
// folder.
struct WholeModel {
  CheckpointMesh mesh;  // of the run that saved it
  CheckpointReader checkpoint;
  std::vector<Value> model_states;               // by mp rank
  Value optimizer_state;                         // contents of optimizer_state.pt
  std::vector<Value> settings;                   // each group's entry of param_groups
  std::vector<std::vector<std::string>> groups;  // names, over all stages, in their order
};

// Opens such a checkpoint. `ordinary` is null for a universal folder. Throws if the files do not
// tell which group has which parameters.
WholeModel open_whole_model(const std::filesystem::path& folder, int threads,
                            RecordChecksums& checks, const ShardedCheckpoint* ordinary);

// Whether a model is a pipeline of layers, whose names begin with their numbers.
bool is_pipeline(const Value& model_state, const std::string& name);

// Returns the ranks of the mesh `to`, by mp rank. A change of tp or pp needs a model of
// Megatron-DeepSpeed or of this program: their names tell a parameter's layer, and their files how
// tp cuts it. Notes for the user are added to `notes`.
std::vector<RankModel> remeshed(const WholeModel& model, const CheckpointMesh& to,
                                std::vector<std::string>& notes);

}  // namespace anymesh
