#pragma once

#include <filesystem>

#include "framework/checkpoint/checkpoint.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"

namespace anymesh {

// The two ways to load this rank's partition from a checkpoint's files. Both are local to each rank
// and do not communicate. The caller must make the parameters from the masters afterwards.

// Loads from whole tensors, on any mesh. Each piece of the partition is read from the runs of bytes
// that hold it. A parameter that the checkpoint lacks keeps its value. Returns the names of
// parameters without moments in the checkpoint, such as those that were frozen; their moments are
// set to zero. The checkpoint must have been opened with `checks`. They count each element of the
// model on one rank.
std::vector<std::string> load_whole_tensors(const CheckpointReader& checkpoint,
                                            CheckpointedRun& run, bool weights_only,
                                            const CustomLoadFn& custom, RecordChecksums& checks);

// Returns the checkpoint's copy of a parameter, under either of its names, or one without states if
// there is none. Throws if the shape differs.
WholeParameter find_parameter(const CheckpointReader& checkpoint, const ParamSpec& spec);
// Returns the layout of rank `tp_rank`'s slice of a whole tensor, as tp cuts it.
ShardLayout layout_of(const ParamSpec& spec, int tp_size, int tp_rank);
// Reads elements [begin, begin + out.numel()) of a slice of `whole`, flattened, into the 1-D `out`.
// `layout` is that slice's. Vocabulary padding is zero.
void read_slice(const TensorRecord& whole, const ShardLayout& layout, int64_t begin,
                torch::Tensor out, const std::string& name);

// The contents of this rank's own files, if the folder has the files that this very rank would
// write (same mesh, ZeRO family, precision and parameters). Otherwise both are None.
struct OwnFiles {
  Value model_states, optimizer;
};
OwnFiles find_own_files(const std::filesystem::path& folder, const Value& metadata,
                        const CheckpointedRun& run, RecordChecksums& checks);
// Loads them. Returns the value that holds the loss scaler's state.
Value load_own_files(const std::filesystem::path& folder, const OwnFiles& own, CheckpointedRun& run,
                     RecordChecksums& checks);

// Returns `file`. If it does not exist, throws an error that lists its folder's contents.
std::filesystem::path existing(const std::filesystem::path& file);

}  // namespace anymesh
