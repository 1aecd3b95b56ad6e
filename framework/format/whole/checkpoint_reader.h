#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/format/layout/shard_layout.h"
#include "framework/format/sharded/sharded_checkpoint.h"
#include "framework/format/whole/weights_reader.h"

namespace anymesh {

// Any checkpoint as whole tensors, whichever mesh saved it:
//
//   ordinary tag folder   shards of any tp, pp, dp and ZeRO stage 0 to 3, merged as they are read
//   universal folder      zero/<parameter>/*.pt
//   weights               a torch or safetensors file, or a folder with either (weights_reader.h)
//
//   CheckpointReader checkpoint = open_checkpoint("checkpoints", 4);   // the tag in `latest`
//   WholeParameter weight = checkpoint.parameter("2.mlp.dense_h_to_4h.weight");
//   weight.state("exp_avg").bytes->read(offset, out);                       // reads this range
//
// Opening and parameter() read metadata only, and weights where ZeRO 0 records no order. Throws for
// a folder that is none of these, listing its contents, and for an ordinary checkpoint in which an
// element is missing or there twice. Throws for tensor-parallel shards without
// universal_checkpoint_info, which says how to merge them.
struct WholeParameter {
  Shape shape;
  // By name: fp32, and the optimizer's states for each element. An untrained parameter's fp32 keeps
  // its own dtype unless that is half precision.
  std::map<std::string, TensorRecord, std::less<>> states;
  Value step;  // None if the checkpoint has none
  Value keys;  // the format's keys about the cut: cat_dim, vocab_tensor, ...; or None
  std::vector<int> pp_ranks;  // ranks that hold it, in an ordinary checkpoint
  // As the files hold it: shards and their fragments, by (pp, tp), and how tp cuts them. A universal
  // folder and weights have one shard, the whole.
  std::vector<ParameterShard> shards;
  CutRule cut{.replicated = true};
  bool averaged = false;  // the whole is the mean of the tp ranks' copies

  TensorRecord state(std::string_view name) const;  // without `bytes` if there is none
  TensorRecord weight() const { return state(kFp32State); }
  bool has_moments() const { return states.size() > states.count(kFp32State); }
  // Returns which elements of the whole a tp rank's shard has.
  ShardLayout slice(int tp_rank) const;
  // The same for another tp size, which cuts evenly. Throws Unreadable, naming the affine map, if
  // that does not say how.
  ShardLayout slice(int tp_rank, int tp_size) const;
};

class CheckpointReader {
 public:
  enum class Kind { kOrdinary, kUniversal, kWeights };

  Kind kind = Kind::kOrdinary;
  std::filesystem::path path;
  std::string description;     // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  Value metadata;              // the first model-states file; None for weights
  Value optimizer_state;       // a universal folder's optimizer_state.pt; None for weights
  std::string states_refused;  // as ShardedCheckpoint's
  bool weights_rounded = false;

  // Sorted names. A tied weight's second names are included and stand for the same parameter.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const;
  WholeParameter parameter(const std::string& name) const;       // throws if there is none
  const std::string& first_name(const std::string& name) const;  // if tied; else `name`

 private:
  friend CheckpointReader open_checkpoint(const std::filesystem::path&, int, RecordChecksums*);
  friend CheckpointReader reader_of(const std::filesystem::path&, const StoredWeights&);
  void open_ordinary(int threads);
  void open_universal();
  void take(const StoredWeights& weights);
  // `stages` have a model-states file of each pipeline stage.
  void add_untrained_of_zero3(const std::vector<Value>& stages);
  void finish();
  WholeParameter read_universal(const std::string& name) const;

  RecordChecksums* checks_ = nullptr;
  std::map<std::string, WholeParameter> parameters_;  // without those in a universal folder's zero/
  std::map<std::string, std::string> aliases_;        // second name -> first
  std::map<std::string, Shape> shapes_;               // for tensors that ZeRO 3 leaves flat
  Value common_step_;                                 // DeepSpeed's ZeRO 3 has one step for all
  std::vector<std::string> names_;
};

// Opens a checkpoint, reading files with `threads` threads. With `checks`, which must outlive the
// checkpoint, large tensors in torch files are checked as they are read.
CheckpointReader open_checkpoint(const std::filesystem::path& path, int threads,
                                 RecordChecksums* checks = nullptr);

// Returns weights that were read from `path`, perhaps under other names, as a checkpoint.
CheckpointReader reader_of(const std::filesystem::path& path, const StoredWeights& weights);

// Returns the folder of `tag` (--tag) below the path. Without a tag, returns the folder that
// `latest` names, else the universal folder that `latest_universal` names, else the path itself. If
// that is no checkpoint, returns the only tag folder in it, and adds a note for the user; throws a
// UserError if there are several.
std::filesystem::path resolve_tag(const std::filesystem::path& path, const std::string& tag = "",
                                  std::vector<std::string>* notes = nullptr);
CheckpointReader::Kind checkpoint_kind(const std::filesystem::path& path);

}  // namespace anymesh
