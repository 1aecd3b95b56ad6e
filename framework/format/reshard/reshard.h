#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/folder/output_folder.h"
#include "framework/format/io/progress.h"
#include "framework/format/reshard/target.h"

namespace anymesh {

// Cuts a checkpoint anew for another mesh, ZeRO stage or precision. The source is an ordinary
// checkpoint of DeepSpeed, Megatron-DeepSpeed or this program, or a universal folder. The result is
// the ordinary checkpoint that a job there would have written, and the unmodified load_checkpoint
// of DeepSpeed, HF Trainer, Accelerate and Lightning takes it:
//
//   reshard({.input = "ckpt/global_step100", .output = "ckpt6/global_step100",
//            .target = ReshardTarget::parse("dp=6")}, {});
//
// The model may be anything: names, groups, frozen, tied and shared parameters, buffers and states
// of the optimizer are taken from the files. Masters and states keep their bits. Values that
// DeepSpeed derives from the mesh are computed anew: the partitions and their paddings,
// param_shapes, param_slice_mappings, world sizes, the stage and the precision in ds_config. Values
// that the files do not tell are named in the report's notes.
//
// The checkpoint is first planned from metadata, then streamed (write_files.h), so that memory
// stays small at any model size. The folder gets its name only when it is complete. It replaces one
// that this function made, and no other. The leftovers of a killed run in output.tmp are compared
// and completed. A source that changes meanwhile is an error, and so is a damaged byte.
//
// Throws a UserError for a target that DeepSpeed cannot train, or that the files do not suffice
// for.
struct ReshardOptions {
  std::filesystem::path input, output;  // tag folders; the input also the folder with `latest`
  ReshardTarget target;
  int threads = write_threads();
  bool assume_module_order = false;  // of a ZeRO 0 source, as in ConvertOptions
  bool dry_run = false;              // only plan
};

struct ReshardReport : StreamReport {
  CheckpointMesh from, to;
  int64_t parameters = 0, elements = 0;  // trained; elements of fp32 masters
  std::vector<std::string> beside;       // files written beside the tag
  std::vector<std::string> notes;        // for the user, a line each
};

ReshardReport reshard(const ReshardOptions& options, const ProgressCallback& progress);

}  // namespace anymesh
