#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "framework/format/layout/experts.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/value.h"

namespace anymesh {

class RecordChecksums;

// An ordinary tag folder, seen parameter by parameter. Each parameter has the shards of its tp and
// pp ranks, and each shard knows where in which files the elements of its states lie. Only metadata
// is read.
//
//   ShardedCheckpoint source = open_sharded_checkpoint("checkpoints/global_step100", 4);
//   source.parameters["2.mlp.dense_h_to_4h.weight"].front().states["fp32"].fragments.front().bytes
//
// Understands ZeRO 0, 1 (DeepSpeedZeroOptimizer and BF16_Optimizer), 2 and 3, as written by
// DeepSpeed, Megatron-DeepSpeed and this program, with any optimizer that keeps numbers for each
// element, or for each row and column (at ZeRO 0 and tp 1). Weights come first. States that are not
// understood, or cannot be assigned to a parameter with certainty, are left out, and
// `states_refused` says why. Throws, with names, if rank files are missing or the order of the
// weights cannot be known.

// Consecutive elements of a shard.
struct ShardFragment {
  int dp_rank = 0;
  int64_t begin = 0;  // in the shard
  int64_t numel = 0;
  BytesPtr bytes;  // have the elements from `offset` on
  uint64_t offset = 0;
};
using FragmentsPtr = std::shared_ptr<const std::vector<ShardFragment>>;

// One state of a shard; its fragments ascend by `begin`.
struct ShardState {
  DType dtype = DType::kFloat32;
  std::vector<ShardFragment> fragments;
  // A factored state's own shape. Other states have the shard's.
  std::optional<Shape> factored = {};
};

// The shard of a parameter that one model-parallel rank holds. Experts have the fragments of all ep
// ranks here, as if one rank held them all; those that tp does not cut are at tp rank 0.
struct ParameterShard {
  int pp_rank = 0, tp_rank = 0;
  Shape shape;
  // By name: fp32, and the optimizer's states for each element, e.g. exp_avg. Before the first step
  // there is only fp32.
  std::map<std::string, ShardState, std::less<>> states;
  Value step;  // None if the format does not record it
  // Single numbers beside the step, by name: NAdam's mu_product, ASGD's eta and mu.
  std::map<std::string, Value, std::less<>> numbers;

  const Shape& shape_of(const ShardState& state) const {
    return state.factored ? *state.factored : shape;
  }
};
using ShardsPtr = std::shared_ptr<const std::vector<ParameterShard>>;

// The contents of a pipeline's layer file, whose keys are names within the layer.
struct LayerFile {
  int number = 0, tp_rank = 0;
  std::filesystem::path path;
  Value contents;
  std::string
      prefix;  // of the full names: "3.", or for a layer that stages share "tied_modules.embed."
  bool is_shared() const { return prefix.starts_with(kTiedModules); }
};

struct ShardedCheckpoint {
  std::filesystem::path folder;
  int stage = 0;
  bool weights_only = false;  // saved without optimizer state
  int tp_size = 1, pp_size = 1, dp_size = 1;
  std::vector<std::filesystem::path> metadata_files;  // model-states files, to be copied
  std::vector<Value> model_states;                    // by mp rank; dp rank 0's under ZeRO 3
  std::map<std::pair<int, int>, std::filesystem::path> layer_files;  // by (layer, tp)
  std::vector<std::pair<int, std::filesystem::path>> expert_files;   // with their tp rank
  // ZeRO 3's parts of frozen parameters, dicts by name, at dp_rank * tp_size * pp_size + mp_rank.
  std::vector<Value> frozen_parts;
  ExpertSpread experts;
  std::map<std::string, std::vector<ParameterShard>> parameters;  // by (pp, tp)
  // Weights in the model's precision and buffers, of all pipeline stages. By tp rank, in the order
  // of named_parameters(). Empty for ZeRO 3.
  std::vector<NamedTensors> model_tensors;
  std::vector<LayerFile> layers;
  // By mp rank: the optimizer_state_dict of dp rank 0, or at ZeRO 0 the model-states file's
  // `optimizer`; and the names of each of its groups' parameters, in the optimizer's order. Empty
  // if the states were refused, or if the weights stand for the masters.
  std::vector<Value> optimizers;
  std::vector<std::vector<std::vector<std::string>>> groups;
  Value optimizer_state;         // contents of the universal optimizer_state.pt
  std::string states_refused;    // why only fp32 states are here; empty if all are
  bool weights_rounded = false;  // some weights are rounded, for want of usable masters
  // In a part of a checkpoint: the names of all parameters. `parameters` then lacks some, and some
  // fragments of the others.
  std::vector<std::string> all_names;

  const Value& model_state(int pp_rank, int tp_rank) const {
    return model_states[static_cast<size_t>(pp_rank * tp_size + tp_rank)];
  }
};

// Opens a tag folder, reading files with `threads` threads. With `checks`, large tensors are
// checked as they are read. `module_order` assumes that optimizer states are in the module's order
// where nothing records their parameters, as in DeepSpeed's ZeRO 0.
ShardedCheckpoint open_sharded_checkpoint(const std::filesystem::path& folder, int threads,
                                          RecordChecksums* checks = nullptr,
                                          bool module_order = false);

// Throws unless the fragments of a state cover every element of the shard exactly once.
void check_covered(const std::string& name, const ParameterShard& shard, const std::string& state);

// Whether a state's name can be a file name in a universal folder, beside fp32 and step.
bool is_state_name(const std::string& name);

// Whether a state of this shape may be factored, as Adafactor's: the parameter's shape without one
// dim, or with 1 in its place.
bool is_factored(const Shape& state, const Shape& parameter);

// Returns a state of a shard as one tensor that joins its fragments.
TensorRecord shard_tensor(const ParameterShard& shard, std::string_view state);

// Throws if the optimizer states of the checkpoint in `folder` were refused.
void require_states(const std::filesystem::path& folder, const std::string& states_refused,
                    const std::string& remedy);

// Returns the weights of one model-parallel rank in the model's precision, by full name. They come
// from `module` (nested dicts joined with dots). A pipeline has none there: its weights are in
// layer files.
NamedTensors module_tensors(const Value& model_state);

// The buffer names in one model-states file, or in all; empty where none are recorded.
std::set<std::string> buffer_names(const Value& model_state);
std::set<std::string> buffer_names(const ShardedCheckpoint& source);

// Returns an entry of a section of ds_config, such as zero_optimization; None if it has none.
Value config_entry(const Value& config, std::string_view section, std::string_view key);

// Returns DeepSpeed's round_robin_gradients from the config in an optimizer file, or false.
Value round_robin_gradients(const Value& optimizer);

// Whether Megatron-DeepSpeed wrote these model states. This program writes similar `args`, but also
// anymesh_dropout_seed.
bool is_megatrons(const Value& model_state);

// The model-parallel degrees that a model-states file records. Without
// checkpoint_parallel_dimensions, all ranks are tp's. DeepSpeed counts Ulysses' sequence-parallel
// ranks as tp's there, though each has whole parameters; mp_world_size is then 1.
struct Degrees {
  int64_t tp = 1, pp = 1;
};
Degrees degrees_of(const Value& model_state);

// Returns the state dict of torch's optimizer inside ZeRO 1's or 2's. Elastic checkpoints
// ("elastic_checkpoint": true, once the default) have the groups' states alone: their param groups
// are made up, without hyperparameters.
Value base_state_of(const Value& optimizer);

// Whether a value is one number: a Python number or a tensor without dims.
bool is_single(const Value& value);

// A number that Adafactor computes anew at each step. Ranks and parameters may differ in it.
inline constexpr std::string_view kRecomputedNumber = "RMS";
// Adds a note for the user on single numbers beside the step, if the output needs one.
void note_numbers(const ShardedCheckpoint& source, bool universal, std::vector<std::string>& notes);

// Returns the step from a base optimizer's state entry, or else from its param group.
Value step_of(const Value& state, const Value& group);

}  // namespace anymesh
