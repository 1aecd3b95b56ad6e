#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/format/torch_file/value.h"

namespace anymesh {

// How the ranks of an ordinary checkpoint hold experts, and the keys that say so.
//
// DeepSpeed's AutoEP, and we, stack the experts of a layer: of `2.mlp.experts.w1` [E, ...] ep rank
// r has the block [r E/ep, (r + 1) E/ep). DeepSpeed's older mixtures have parameters for each
// expert, `...deepspeed_experts.0.weight`, which every ep rank numbers from 0.
//
// Dense parameters are cut over all dp ranks. Experts are cut over the edp ranks that hold the same
// ones, though their files have the numbers of dp ranks. Tensor parallelism cuts experts too,
// unless they are `whole`: then all tp ranks of a stage count as further dp ranks.
class ExpertSpread {
 public:
  struct Layer {
    std::string prefix;   // of the stacked parameters: "2.mlp.experts"
    int64_t experts = 0;  // E
  };
  // A rank's place in the grid of experts.
  struct Rank {
    int ep = 0, edp = 0, ep_size = 1, edp_size = 1;
    bool adjacent = false;  // ranks of equal ep are adjacent
  };
  // The elements of a parameter that an ep rank holds, in the parameter of all ep ranks.
  struct Place {
    std::string name;
    Shape shape;
    int64_t begin = 0;
  };

  std::vector<Layer> layers;  // stacked; over all stages, by number
  int ep_size = 1;
  bool whole = false;

  // Reads the keys of all model-parallel ranks' model-states files.
  static ExpertSpread from(std::span<const Value> model_states);
  static ExpertSpread from(const Value& model_state) { return from(std::span(&model_state, 1)); }
  // Sets the keys for a rank. `zero3` says that no file has experts in the model's precision.
  void record(Value& model_state, const Rank& rank, bool zero3) const;

  bool is_expert(const std::string& name) const;
  const Layer* layer_of(const std::string& name) const;  // null unless it is stacked
  // Returns the place of a rank's file. `group`, the group's name in param_groups, tells the ep
  // size of older mixtures, "ep_size_2".
  Rank rank_of(int dp_rank, int dp_size, int tp_rank, int tp_size,
               const std::string& group = "") const;
  Place place_of(const std::string& name, const Shape& shape, const Rank& rank) const;

  // Returns the prefix in "2.mlp.experts.w1".
  static std::string prefix_of(const std::string& name);

  // The files of single experts. An expert's part of a stacked parameter has the key
  // "2.mlp.experts.w1.3".
  int layer_number_of(const std::string& name) const;  // the name must be that of a stacked one
  std::string file_of(const std::string& name, int64_t expert, int tp_rank) const;
  static std::string key_of(const std::string& name, int64_t expert);
  // Splits a key: w1 and expert 3; the name and -1 for an older mixture's.
  std::pair<std::string, int64_t> split_key(const std::string& key) const;

  // Whether there are DeepSpeed's older mixtures.
  bool has_older() const { return !locals_.empty(); }
  static std::string group_name(int ep_size) { return "ep_size_" + std::to_string(ep_size); }

 private:
  bool data_first_ = false;                // Rank::adjacent
  std::map<std::string, int64_t> locals_;  // older mixtures: experts of a rank, by prefix
};

// Returns ZeRO 3's entry about the dp ranks that a sub-group is cut over. `rank` is the rank's
// place among them: in edp, or for dense parameters in dp.
Value zero_partition_group(int64_t sub_group, bool experts, const ExpertSpread::Rank& rank);

// Returns the keys beside a stacked parameter in a universal folder's file. AutoEP cuts it by
// itself along dim 0.
std::vector<Value::Entry> expert_keys(int64_t experts);

// Returns tensor i of those that are stacked along dim 0.
TensorRecord unstacked(const TensorRecord& stacked, int64_t i);

}  // namespace anymesh
