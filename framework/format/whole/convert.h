#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/folder/output_folder.h"
#include "framework/format/io/progress.h"

namespace anymesh {

// Converts an ordinary checkpoint, or a folder of torch.distributed.checkpoint, to a universal one,
// which resumes on any mesh:
//
//   convert_to_universal({.input = "ckpt/global_step100",
//                         .output = "ckpt/global_step100_universal"}, {});
//
// It writes, in the output folder,
// - zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt (other optimizers have other states:
//   momentum_buffer.pt, max_exp_avg_sq.pt);
// - zero/optimizer_state.pt;
// - copies of the model-states files;
// and last `latest_universal` beside the folder.
//
// The conversion is first planned from metadata: every element of every parameter must be covered
// exactly once. Then the tensors are streamed (write_files.h), so that memory stays small at any
// model size. The folder gets its name only when it is complete, and replaces an existing one. The
// leftovers of a killed conversion in output.tmp are compared with the source, and only missing or
// differing bytes are written. A source file that changes meanwhile is an error, and so is a
// damaged byte in a copied record.
//
// Each tensor equals the output of DeepSpeed's ds_to_universal, except that
// - row-parallel weights of a Megatron checkpoint at tp 1 get cat_dim 1 (DeepSpeed: 0, which breaks
//   a resume at tp > 1);
// - frozen parameters that tp cuts are merged (DeepSpeed takes rank 0's shard);
// - a checkpoint from before the first step keeps its fp32 masters (DeepSpeed: rounded weights, or
//   none for a pipeline);
// - tensors of a ZeRO 3 checkpoint keep their shape, and have the keys and the step that the other
//   stages have (DeepSpeed: bare and flat, which only a ZeRO 3 run can load);
// - ZeRO 0 and elastic checkpoints are converted as well (DeepSpeed refuses the former and fails on
//   the latter);
// - metadata and optimizer_state.pt serve ZeRO 3 and the other stages alike (DeepSpeed: only the
//   source's own).
struct ConvertOptions {
  std::filesystem::path input, output;  // the input may also be the folder with `latest`
  int read_workers = 4;                 // threads that open files and plan
  int write_workers = write_threads();
  bool keep_plan = false;  // leave the plan in output/tmp/plan.json
  bool dry_run = false;    // only plan, and time a sample of at most 256 MiB beside the output
  bool strict = true;      // a pattern that matches no parameter is an error, not a warning
  // Continue without universal_checkpoint_info at tp > 1: no parameter then has a special rule. At
  // tp 1 it may be missing in any case.
  bool inject_missing_info = false;
  // DeepSpeed at ZeRO 0 does not record the order of the optimizer's states. Where the files do not
  // prove an order, assume the module's. If two groups differ in weight decay, one of them is taken
  // to hold the biases and norms.
  bool assume_module_order = false;
};

struct ConvertReport : StreamReport {
  int stage = 0, tp_size = 1, pp_size = 1, dp_size = 1;
  int64_t parameters = 0, tensors = 0, elements = 0;
  std::vector<std::string> warnings;
};

ConvertReport convert_to_universal(const ConvertOptions& options, const ProgressCallback& progress);

}  // namespace anymesh
