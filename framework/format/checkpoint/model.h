#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/format/checkpoint/merge.h"
#include "framework/format/checkpoint/weights_reader.h"
#include "framework/format/layout/shard_layout.h"
#include "framework/format/sharded/sharded_checkpoint.h"

namespace anymesh {

// Any checkpoint as uncut tensors, whichever mesh saved it:
//
//   ordinary tag folder   shards of any tp, pp, dp and ZeRO stage 0 to 3, merged as they are read
//   universal folder      zero/<parameter>/*.pt
//   weights               a torch or safetensors file, or a folder with either (weights_reader.h)
//   dcp                   of FSDP2 or Megatron-Core (dialects/dcp.h, dialects/dtensor_files.h)
//
//   const Checkpoint checkpoint = open_checkpoint("checkpoints", 4);   // the tag in `latest`
//   SavedParameter weight = checkpoint.parameter("2.mlp.dense_h_to_4h.weight");
//   weight.state("exp_avg").bytes->read(offset, out);                       // reads this range
//
// Opening and parameter() read metadata only, and weights where ZeRO 0 records no order. Each file
// is opened once. Throws for a folder that is none of these, listing its contents, and for an
// ordinary checkpoint in which an element is missing or there twice, or whose files are of several
// saves. Throws for tensor-parallel shards without universal_checkpoint_info, which says how to
// merge them.
class Checkpoint {
 public:
  enum class Kind { kOrdinary, kUniversal, kWeights, kDcp };

  Kind kind = Kind::kOrdinary;
  std::filesystem::path path;
  std::string description;  // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  Value metadata;           // the first model-states file; None for weights
  // The model-states files by mp rank, of dp rank 0 under ZeRO 3; none for weights. A universal
  // folder may lack the last ones. A dcp has one, made from it (dialects/deepspeed_view.h).
  std::vector<Value> model_states;
  Value optimizer_state;       // a universal folder's optimizer_state.pt; None for weights
  std::string states_refused;  // as ShardedCheckpoint's
  bool weights_rounded = false;

  // Sorted names. A tied weight's second names are included and stand for the same parameter.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const;
  SavedParameter parameter(const std::string& name) const;       // throws if there is none
  const std::string& first_name(const std::string& name) const;  // if tied; else `name`

 private:
  friend Checkpoint open_checkpoint(const std::filesystem::path&, int, RecordChecksums*);
  friend Checkpoint checkpoint_of(const std::shared_ptr<const ShardedCheckpoint>&);
  friend Checkpoint checkpoint_of(const std::filesystem::path&, const StoredWeights&);
  void take(const std::shared_ptr<const ShardedCheckpoint>& ranks);
  void take(const StoredWeights& weights);
  void open_universal();
  void open_foreign();
  void add_buffers_of_zero3(int64_t tp_size);
  void add_frozen_of_zero3();
  void add(const std::string& name, const TensorRecord& tensor);
  void finish();
  SavedParameter read_universal(const std::string& name) const;

  RecordChecksums* checks_ = nullptr;
  std::shared_ptr<const Merger> merger_;              // of an ordinary checkpoint
  std::map<std::string, SavedParameter> parameters_;  // neither merged nor in a universal zero/
  std::map<std::string, std::string> aliases_;        // second name -> first
  std::map<std::string, Shape> shapes_;               // for tensors that ZeRO 3 leaves flat
  Value common_step_;                                 // DeepSpeed's ZeRO 3 has one step for all
  std::vector<std::string> names_;
};

// Opens a checkpoint, reading files with `threads` threads. With `checks`, which must outlive the
// checkpoint, large tensors in torch files are checked as they are read.
Checkpoint open_checkpoint(const std::filesystem::path& path, int threads,
                           RecordChecksums* checks = nullptr);

// Returns an ordinary checkpoint, or a part of one, that is open already, or weights that were read
// from `path`, perhaps under other names.
Checkpoint checkpoint_of(const std::shared_ptr<const ShardedCheckpoint>& ranks);
Checkpoint checkpoint_of(const std::filesystem::path& path, const StoredWeights& weights);

// Returns the folder of `tag` (--tag) below the path. Without a tag, returns the folder that
// `latest` names, else the universal folder that `latest_universal` names, else the path itself. If
// that is no checkpoint, returns the only tag folder in it, and adds a note for the user; throws a
// UserError if there are several.
std::filesystem::path resolve_tag(const std::filesystem::path& path, const std::string& tag = "",
                                  std::vector<std::string>* notes = nullptr);
Checkpoint::Kind checkpoint_kind(const std::filesystem::path& path);

}  // namespace anymesh
