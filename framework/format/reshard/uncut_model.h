#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/format/checkpoint/model.h"
#include "framework/format/reshard/rank_model.h"

namespace anymesh {

// A checkpoint's uncut tensors and the optimizer's groups of them, to be cut for another tp and pp.
struct UncutModel {
  Checkpoint checkpoint;
  CheckpointMesh mesh;                           // of the run that saved it
  std::vector<Value> settings;                   // each group's entry of param_groups
  std::vector<Value> numbers;                    // each group's single numbers, a dict by name
  std::vector<std::vector<std::string>> groups;  // names, over all stages, in their order
};

// Whether the ranks must be made from uncut tensors: tp or pp changes, or a pipeline's layer files
// are to be made from masters.
bool needs_uncut_tensors(const ShardedCheckpoint& source, const CheckpointMesh& from,
                         const CheckpointMesh& to);

// Throws if the files do not tell which group has which parameters. `ranks` is null for a universal
// folder, else the checkpoint as its ranks wrote it.
UncutModel uncut_model(Checkpoint checkpoint, const ShardedCheckpoint* ranks);

// A checkpoint of any kind, and its optimizer if it has one. Throws for states that are not
// understood.
struct OpenedUncut {
  Checkpoint checkpoint;
  std::optional<UncutModel> model;
};
OpenedUncut open_uncut(const std::filesystem::path& folder, int threads, RecordChecksums& checks);

// Returns the ranks of the mesh `to`, by mp rank. A change of tp or pp needs a model of
// Megatron-DeepSpeed or of this program: their names tell a parameter's layer, and their files how
// tp cuts it. Notes for the user are added to `notes`.
std::vector<RankModel> remeshed(const UncutModel& model, const CheckpointMesh& to,
                                std::vector<std::string>& notes);

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
