#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framework/format/sharded/sharded_checkpoint.h"

namespace anymesh {

// Whether the files of a tag are of one save, and each is of its own rank.
// open_sharded_checkpoint() checks all of this, the weights in a sample; `ckpt verify` checks all
// weights.

// Compares the counters that all files of a save share.
class SameSave {
 public:
  // Returns a line for each counter of a model-states or optimizer file that is another than in the
  // files before: "mp_rank_01_model_states.pt: iteration is 2, but 4 in
  // mp_rank_00_model_states.pt".
  std::vector<std::string> differences(const std::string& file, const Value& contents);
  // The same, of the optimizer's highest step alone: at ZeRO 0, parameters may differ in their
  // steps.
  std::vector<std::string> differences_of_ranks(const std::string& file, const Value& contents);

 private:
  void note(const std::string& file, std::string_view key, const Value& value,
            std::vector<std::string>& lines);
  std::vector<std::string> counters(const std::string& file, const Value& contents);
  std::map<std::string, std::pair<std::string, Value>, std::less<>> firsts_;
};

// Returns the file with the first of these bytes.
std::filesystem::path file_of(const BytesPtr& bytes);

// Weights that are not their masters, rounded to the weights' precision.
struct Unrounded {
  int64_t count = 0, numel = 0;    // of so many
  int64_t first = 0;               // element
  double weight = 0, rounded = 0;  // there
  std::string text() const;        // "3 of 64 elements are not ..., first element 7: 0.5, not 0.25"
};
// Compares masters with as many weights of the model. Other dtypes than float32, float16 and
// bfloat16 count as equal.
Unrounded compare_masters(const TensorRecord& masters, const TensorRecord& weights);
// Throws DamagedFile unless most of these weights of the parameter `name` are their masters. Single
// others may be by intent, and `ckpt verify` reports them.
void expect_rounded(const std::string& name, const TensorRecord& masters,
                    const TensorRecord& weights);
inline constexpr int64_t kMastersSample = 64;  // elements that are compared of each optimizer file

// The model's weights in the precision that it trains in.
class ModelWeights {
 public:
  explicit ModelWeights(const ShardedCheckpoint& source);
  // Returns the weights of a parameter's shard, or null where files have none: at ZeRO 3, and for a
  // pipeline stage's copy of a layer that an earlier stage saved.
  const TensorRecord* of(const std::string& name, const ParameterShard& shard) const;

 private:
  const ShardedCheckpoint& source_;
  std::vector<std::unordered_map<std::string_view, const TensorRecord*>> by_tp_rank_;
};

// Throws DamagedFile unless model-states files and the optimizer files beside them are of one save,
// by their counters.
void check_same_save(std::span<const Value> model_states, std::span<const Value> optimizers);
// Throws DamagedFile unless a dp rank's model-states file of ZeRO 3 has the shapes and counters of
// dp rank 0's.
void check_same_shapes(const Value& state, const Value& first);
// Throws DamagedFile if the tp ranks of a stage are at different steps.
void check_steps(const ShardedCheckpoint& source);
// Throws DamagedFile unless the model's weights have the shapes of their masters. With `sample`,
// reads some elements of each file: weights are their masters, rounded, and no dp rank of ZeRO 3
// has the masters of another. The sample leaves no trace in `checks`, which may be null.
void check_contents(const ShardedCheckpoint& source, bool sample, RecordChecksums* checks);

}  // namespace anymesh
