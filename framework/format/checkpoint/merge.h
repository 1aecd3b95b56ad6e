#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/layout/merge_rules.h"
#include "framework/format/sharded/sharded_checkpoint.h"

namespace anymesh {

// A parameter of a checkpoint: its uncut tensors, and the shards that make them up.
//
//   weight.state("exp_avg").bytes->read(offset, out);   // reads this range, out of all shards
//   weight.shards->at(1).states.at("exp_avg").fragments   // whose elements, and where they are
//   weight.slice(1)                                     // the elements that tp rank 1 has
struct SavedParameter {
  Shape shape;
  // By name: fp32, and the optimizer's states for each element. An untrained parameter's fp32 keeps
  // its own dtype unless that is half precision.
  std::map<std::string, TensorRecord, std::less<>> states;
  // Those among them that each rank has whole, of any shape (keys::kWholeStates).
  std::set<std::string> whole;
  Value step;  // None if the checkpoint has none
  Value keys;  // the format's keys about the cut: cat_dim, vocab_tensor, ...; or None
  std::vector<int> pp_ranks;  // ranks that hold it, in an ordinary checkpoint
  // As the files hold it: shards and their fragments, by (pp, tp), and how tp cuts them. A
  // universal folder and weights have one shard, the uncut tensor.
  ShardsPtr shards;
  CutRule cut{.replicated = true};
  std::string_view rule;  // how the shards are merged, for people; empty if there is one shard

  TensorRecord state(std::string_view name) const;  // without `bytes` if there is none
  TensorRecord weight() const { return state(kFp32State); }
  bool has_moments() const { return states.size() > states.count(kFp32State); }
  bool averaged() const;       // the uncut tensor is the mean of the tp ranks' copies
  bool is_replicated() const;  // all tp ranks have the uncut tensor
  // The number of elements in the shards of one pipeline stage, over all states; if untrained, of
  // the uncut tensor.
  int64_t elements() const;
  // Returns which elements of the uncut tensor a tp rank's shard has.
  ShardLayout slice(int tp_rank) const;
  // The same for another tp size, which cuts evenly. Throws Unreadable, naming the affine map, if
  // that does not say how.
  ShardLayout slice(int tp_rank, int tp_size) const;
};

// Returns the checkpoint's universal_checkpoint_info, which says how shards are merged. Only a tp 1
// checkpoint may lack it. Otherwise throws Unreadable with `remedy` at the end of the message.
UniversalInfo merge_info(const ShardedCheckpoint& ranks, const std::string& remedy = "");

// Merges the shards of an ordinary checkpoint, one parameter at a time. Nothing is read yet.
class Merger {
 public:
  Merger(std::shared_ptr<const ShardedCheckpoint> ranks, UniversalInfo info);
  // All parameters: the trained ones by name, then the model's other tensors in its order (frozen
  // parameters, second names of tied ones, buffers).
  const std::vector<std::string>& names() const { return names_; }
  // Throws DamagedFile if the parameter's elements are not covered exactly once, or if pipeline
  // stages share it but neither a pattern nor a tied layer's name says so.
  SavedParameter merged(const std::string& name) const;
  // Merges all in turn. A DamagedFile then names the checkpoint's folder too.
  using Take = std::function<void(const std::string& name, SavedParameter parameter)>;
  void merge_all(const Take& take) const;
  const UniversalInfo& info() const { return info_; }
  // Patterns that matched no parameter that was merged.
  std::vector<std::string> unused_patterns() const { return rules_.unused(); }

 private:
  using Shards = std::vector<const ParameterShard*>;  // one stage's, by tp rank
  MergeRule rule_of(const std::string& name) const;
  SavedParameter trained(const std::string& name, const ShardsPtr& all) const;
  SavedParameter untrained(const std::string& name) const;
  void add_whole_states(SavedParameter& parameter, const std::string& name) const;
  MergeShape shape_of(const std::string& name, const MergeRule& rule, const Shards& shards) const;
  TensorRecord merge(const std::string& name, const MergeRule& rule, const MergeShape& to,
                     const ShardsPtr& all, const Shards& shards, const std::string& state) const;

  std::shared_ptr<const ShardedCheckpoint> ranks_;
  UniversalInfo info_;
  std::vector<std::string> names_;
  std::map<std::string, size_t> others_;  // places in ShardedCheckpoint::model_tensors
  std::set<std::string> buffers_;
  mutable std::mutex mutex_;  // of the following
  mutable MergeRules rules_;
  mutable std::map<std::string, MergeRule> known_rules_;
};

}  // namespace anymesh
