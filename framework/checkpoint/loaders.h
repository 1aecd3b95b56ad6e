#pragma once

#include <filesystem>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/deferred_checks.h"
#include "framework/checkpoint/format/shard_layout.h"
#include "framework/checkpoint/format/whole_checkpoint.h"

namespace anymesh {

// The two ways from a checkpoint's files to this rank's partition. Local to each rank: neither
// communicates. Parameters are to be made from the masters afterwards.

// From whole tensors, on any mesh: each piece of the partition from the runs of bytes it lies in. A
// parameter that the checkpoint lacks stays as it is. Returns the names of those that the
// checkpoint has without moments, as of parameters that were frozen: theirs are zero now. `checks`,
// with which the checkpoint was opened, count each element of the model on one rank.
std::vector<std::string> load_whole_tensors(const WholeCheckpoint& checkpoint, CheckpointedRun& run,
                                            bool weights_only, const CustomLoadFn& custom,
                                            DeferredChecks& checks);

// What the checkpoint has of a parameter, under either of its names: without states when it has
// none. Throws when it is of another shape.
WholeParameter find_parameter(const WholeCheckpoint& checkpoint, const ParamSpec& spec);
// How tp cuts a whole tensor into what a rank holds of it.
ShardLayout layout_of(const ParamSpec& spec, int tp_size, int tp_rank);
// Elements [begin, begin + out.numel()) of this rank's slice of a whole tensor, flattened, into the
// 1-D `out`. Vocabulary padding is zero.
void read_slice(const TensorRecord& whole, const ShardLayout& layout, int64_t begin,
                torch::Tensor out, const std::string& name);

// What this rank's own files hold, if the folder's files are those that this very rank would write:
// same mesh, ZeRO family, precision and parameters; else None.
struct OwnFiles {
  Value model_states, optimizer;
};
OwnFiles find_own_files(const std::filesystem::path& folder, const Value& metadata,
                        const CheckpointedRun& run, DeferredChecks& checks);
// Loads them. Returns what holds the loss scaler's state.
Value load_own_files(const std::filesystem::path& folder, const OwnFiles& own, CheckpointedRun& run,
                     DeferredChecks& checks);

// The file, or an error that lists what is in its folder.
std::filesystem::path existing(const std::filesystem::path& file);

}  // namespace anymesh
