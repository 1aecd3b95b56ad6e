#pragma once

#include <filesystem>
#include <string>
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
  std::vector<Value> numbers;                    // each group's single numbers, a dict by name
  std::vector<std::vector<std::string>> groups;  // names, over all stages, in their order
};

// Opens such a checkpoint. `ordinary` is null for a universal folder. Throws if the files do not
// tell which group has which parameters.
WholeModel open_whole_model(const std::filesystem::path& folder, int threads,
                            RecordChecksums& checks, const ShardedCheckpoint* ordinary);

// Throws for the groups of an elastic checkpoint, or of a universal folder made of one. A job takes
// the hyperparameters of its groups from an ordinary checkpoint, and would die without them.
void check_hyperparameters(const Value& param_groups, const std::filesystem::path& folder);

// Whether a model is a pipeline of layers, whose names begin with their numbers.
bool is_pipeline(const Value& model_state, const std::string& name);

// Megatron's layer 0 casts the input; the transformer begins at layer 2.
inline constexpr int kEmbeddingLayer = 1;

// The layer of a pipeline's parameter, "7.mlp.dense_h_to_4h.weight", and its name within. A layer
// that stages share is the embedding: "tied_modules.embed.word_embeddings.weight".
struct LayerName {
  int layer = -1;  // -1: not of a pipeline
  std::string name;
};
LayerName layer_name(const std::string& name);

}  // namespace anymesh
