#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/value.h"

namespace anymesh {

class DeferredChecks;

// An ordinary tag folder, seen parameter by parameter: for each the shards of its tp and pp ranks,
// and for each of those where in which files the elements of its states lie. Only metadata is read.
//
//   SourceCheckpoint source = open_source_checkpoint("checkpoints/global_step100", 4);
//   source.parameters["2.mlp.dense_h_to_4h.weight"].front().states["fp32"].fragments.front().bytes
//
// Understands ZeRO 0, 1 (DeepSpeedZeroOptimizer and BF16_Optimizer), 2 and 3, of DeepSpeed,
// Megatron-DeepSpeed and this program, with any optimizer that keeps numbers for each element.
// Weights come first: states that cannot be understood, or be given to a parameter with certainty,
// are left out and the reason is kept, for who needs them. Refuses, by name: missing rank files,
// weights whose order cannot be known.

// Consecutive elements of a shard.
struct SourceFragment {
  int dp_rank = 0;
  int64_t begin = 0;  // in the shard
  int64_t numel = 0;
  BytesPtr bytes;  // exactly numel elements
};

// One state of a shard; its fragments ascend by `begin`.
struct SourceState {
  DType dtype = DType::kFloat32;
  std::vector<SourceFragment> fragments;
};

// What one model-parallel rank holds of a parameter.
struct SourceShard {
  int pp_rank = 0, tp_rank = 0;
  Shape shape;
  // By name: fp32, and what the optimizer keeps for each element, e.g. exp_avg; nothing of this
  // before the first step.
  std::map<std::string, SourceState, std::less<>> states;
  Value step;  // None when the format does not record it
};

struct SourceCheckpoint {
  std::filesystem::path folder;
  int stage = 0;
  bool weights_only = false;  // saved without optimizer state
  int tp_size = 1, pp_size = 1, dp_size = 1;
  std::vector<std::filesystem::path> metadata_files;  // model-states files, to be copied
  std::vector<Value> model_states;                    // by mp rank; under ZeRO 3 those of dp rank 0
  std::map<std::pair<int, int>, std::filesystem::path> layer_files;  // by (layer, tp)
  std::map<std::string, std::vector<SourceShard>> parameters;        // by (pp, tp)
  // By tp rank, in the order of named_parameters(): weights in the model's precision and buffers,
  // of all pipeline stages. None of ZeRO 3.
  std::vector<NamedTensors> model_tensors;
  Value optimizer_state;         // content of the universal optimizer_state.pt
  std::string states_refused;    // why parameters have no states but fp32 here; empty: they have
  bool weights_rounded = false;  // there are masters, but some are refused as well

  const Value& model_state(int pp_rank, int tp_rank) const {
    return model_states[static_cast<size_t>(pp_rank * tp_size + tp_rank)];
  }
};

// `threads` read files at the same time. With `checks` the large tensors are checked as they are
// read. `module_order`: where nothing tells which parameter an optimizer's state is of, as in
// DeepSpeed's ZeRO 0, they are taken to be in the module's order.
SourceCheckpoint open_source_checkpoint(const std::filesystem::path& folder, int threads,
                                        DeferredChecks* checks = nullptr,
                                        bool module_order = false);

// A state of one model-parallel rank, its fragments in a row.
TensorRecord shard_tensor(const SourceShard& shard, std::string_view state);

// Throws if the optimizer's states of the checkpoint in `folder` were refused.
void require_states(const std::filesystem::path& folder, const std::string& states_refused,
                    const std::string& remedy);

// Weights in the model's precision, of one model-parallel rank, by full name: from `module` (nested
// dicts joined with dots), or nothing for a pipeline, whose weights are in layer files.
NamedTensors module_tensors(const Value& model_state);

// Those of a model-states file, or of all; none where it does not say.
std::set<std::string> buffer_names(const Value& model_state);
std::set<std::string> buffer_names(const SourceCheckpoint& source);

// DeepSpeed's setting of that name in the config that an optimizer's state has, or false.
Value round_robin_gradients(const Value& optimizer);

// Whether Megatron-DeepSpeed wrote these model states, and not this program, whose `args` are like
// its.
bool is_megatrons(const Value& model_state);

}  // namespace anymesh
