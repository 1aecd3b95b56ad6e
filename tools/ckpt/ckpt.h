#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "framework/format/whole.h"

namespace anymesh {

// The subcommands of ckpt. Each writes its findings to `out` and returns the exit code. Throws if
// the path is no checkpoint at all.
enum CkptExit {
  kExitAllWell = 0,
  kExitDiffers = 1,        // or is broken
  kExitNoCheckpoint = 2,   // or the arguments are wrong
  kExitNotUnderstood = 3,  // may be whole, but is not understood, or cannot be opened here
};
struct CkptOptions {
  int workers = 4;                 // threads
  bool all = false;                // every line, however many
  ProgressCallback progress = {};  // of verify and diff
};

int inspect_checkpoint(const std::filesystem::path& path, const CkptOptions& options,
                       std::ostream& out);
// Prints where the elements of one parameter lie: files, records, offsets.
int follow_parameter(const std::filesystem::path& path, const std::string& name,
                     const CkptOptions& options, std::ostream& out);
int verify_checkpoint(const std::filesystem::path& path, const CkptOptions& options,
                      std::ostream& out);
int diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                     const CkptOptions& options, std::ostream& out);

// Writes a checkpoint in another format: dcp, deepspeed (whose mesh may change, as ds_reshard's
// --target says) or universal.
struct ConvertRequest {
  std::string to, target = "", model_key = "model", optimizer_key = "optim";
};
int convert_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                       const ConvertRequest& request, const CkptOptions& options,
                       std::ostream& out);

// Returns the parameter. Throws, with names like this one, if there is none.
SavedParameter parameter_named(const Checkpoint& checkpoint, const std::string& name);

// Returns which part of the whole tensor W a tp rank has: "W[:, 128:256], of shape [64, 128]".
std::string slice_text(const SavedParameter& parameter, int tp_rank);

// "pp 0, tp 1, dp 2": who has the fragment in this file. A file without a dp rank in its name is of
// all dp ranks.
std::string rank_text(const SavedParameter& parameter, const ParameterShard& shard,
                      const ShardFragment& fragment, const std::filesystem::path& file);

// Where consecutive elements of a shard lie.
struct FragmentPlace {
  FileRange range;
  int64_t begin = 0, numel = 0;  // elements, counted in the shard
};
std::vector<FragmentPlace> places_of(const ShardFragment& fragment, DType dtype);

// Returns a run's step and its consumed samples, by Megatron's entries of the metadata, else by
// DeepSpeed's; None if it has neither.
Value step_of(const Value& metadata);
Value samples_of(const Value& metadata);

// Returns the folder with the checkpoint's files.
std::filesystem::path folder_of(const Checkpoint& checkpoint);

// Returns whether all bytes of the tensor are 0.
bool is_zero(const TensorRecord& tensor);

// Returns every file in a folder and below it, sorted; or the file itself.
std::vector<std::filesystem::path> files_under(const std::filesystem::path& path);
bool is_torch_file(const std::filesystem::path& file);  // by its name
bool holds_tensors(const std::filesystem::path& file);  // likewise: of torch.save or safetensors
uint64_t bytes_of(const std::vector<std::filesystem::path>& files);

// Prints at most `limit` lines (all with --all), then how many more there are.
void print_lines(std::ostream& out, const std::vector<std::string>& lines, size_t limit,
                 const CkptOptions& options);
// Prints rows with their columns aligned.
void print_table(std::vector<std::vector<std::string>> rows, std::ostream& out);
// "... and 3 more (--all)", unless there are none.
void print_rest(std::ostream& out, const std::string& indent, size_t count);

}  // namespace anymesh
