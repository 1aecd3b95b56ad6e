#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/checkpoint/format/source_checkpoint.h"

namespace anymesh {

// Any checkpoint as whole tensors, whatever mesh it is of:
//
//   ordinary tag folder   shards of any tp, pp, dp and ZeRO stage 0 to 3, merged as they are read
//   universal folder      zero/<parameter>/*.pt
//   weights               a torch file of a dict name -> tensor, a safetensors file, or a folder
//                         with pytorch_model.bin, model.safetensors or the parts of one and their
//                         index, as zero_to_fp32 leaves it
//
//   WholeCheckpoint checkpoint = open_whole_checkpoint("checkpoints", 4);   // the tag of `latest`
//   WholeParameter weight = checkpoint.parameter("2.mlp.dense_h_to_4h.weight");
//   weight.state("exp_avg").bytes->read(offset, out);                       // only what is behind
//
// Opening and parameter() read metadata only; but where ZeRO 0 records no order, weights too.
// Refused: a folder that is none of these, by what it
// holds; an ordinary checkpoint in which an element is missing or there twice; tensor-parallel
// shards without universal_checkpoint_info, which says how they are merged.
struct WholeParameter {
  Shape shape;
  // By name: fp32 (of what is not trained, in its own dtype if that is not half precision), and
  // what the optimizer keeps for each element.
  std::map<std::string, TensorRecord, std::less<>> states;
  Value step;  // None where the checkpoint has none
  Value keys;  // what the format says about the cut: cat_dim, vocab_tensor, ...; None: nothing
  std::vector<int> pp_ranks;  // that hold it, in an ordinary checkpoint

  TensorRecord state(std::string_view name) const;  // without `bytes` where there is none
  TensorRecord weight() const { return state(kFp32State); }
  bool has_moments() const { return states.size() > states.count(kFp32State); }
};

class WholeCheckpoint {
 public:
  enum class Kind { kOrdinary, kUniversal, kWeights };

  Kind kind = Kind::kOrdinary;
  std::filesystem::path path;
  std::string description;     // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  Value metadata;              // of the first model-states file; None for weights
  Value optimizer_state;       // what optimizer_state.pt of a universal folder has, likewise
  std::string states_refused;  // as SourceCheckpoint's
  bool weights_rounded = false;

  // Sorted. Second names of tied weights are among them, and stand for the parameter they name.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const;
  WholeParameter parameter(const std::string& name) const;       // throws when there is none
  const std::string& first_name(const std::string& name) const;  // of a tied weight

 private:
  friend WholeCheckpoint open_whole_checkpoint(const std::filesystem::path&, int, DeferredChecks*);
  void open_ordinary(int threads);
  void open_universal();
  void open_weights();
  void add_untrained_of_zero3();
  void finish();
  WholeParameter read_universal(const std::string& name) const;

  DeferredChecks* checks_ = nullptr;
  std::map<std::string, WholeParameter> parameters_;  // but those in a universal folder's zero/
  std::map<std::string, std::string> aliases_;        // second name -> first
  std::map<std::string, Shape> shapes_;               // of the tensors that ZeRO 3 leaves flat
  Value common_step_;                                 // DeepSpeed's ZeRO 3 has one for all
  std::vector<std::string> names_;
};

// `threads` read files at the same time. With `checks`, which must live as long as the checkpoint,
// large tensors of torch files are checked as they are read.
WholeCheckpoint open_whole_checkpoint(const std::filesystem::path& path, int threads,
                                      DeferredChecks* checks = nullptr);

// The folder of `tag` (--tag) below the path; without one the tag folder that `latest` names, where a
// folder has that file (else the universal one of `latest_universal`); otherwise the path itself.
std::filesystem::path resolve_tag(const std::filesystem::path& path, const std::string& tag = "");
WholeCheckpoint::Kind checkpoint_kind(const std::filesystem::path& path);

// Name -> tensor of one file of weights: safetensors by its name, else torch's.
Value read_weights_file(const std::filesystem::path& file, DeferredChecks* checks = nullptr);

}  // namespace anymesh
