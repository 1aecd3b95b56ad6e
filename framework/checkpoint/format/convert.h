#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/format/progress.h"
#include "framework/checkpoint/format/stream_files.h"

namespace anymesh {

// Makes a universal checkpoint, which resumes on any mesh, out of an ordinary one:
//
//   convert_to_universal({.input = "ckpt/global_step100",
//                         .output = "ckpt/global_step100_universal"}, {});
//
// writes output/zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt (of another optimizer what it
// has: momentum_buffer.pt, max_exp_avg_sq.pt), output/zero/optimizer_state.pt, copies of the model-states files, and last `latest_universal` beside the output folder. First
// everything is planned from metadata, and every element of every parameter must be covered exactly
// once; then tensors are streamed (stream_files.h), so that memory stays small at any model size.
// The folder appears under its name only when it is whole; one that is there is replaced. What a
// conversion that was killed has left in output.tmp is compared with the source, and only what is
// missing or differs is written. Sources that are written to meanwhile are an error, and so is a
// damaged byte of what is copied.
//
// The result is DeepSpeed's ds_to_universal's, tensor by tensor, except that
// - row-parallel weights of a Megatron checkpoint of tp 1 say cat_dim 1 (DeepSpeed: 0, which breaks
// a resume at tp > 1);
// - frozen parameters that tp cuts are merged (DeepSpeed takes the shard of rank 0);
// - a checkpoint from before the first step keeps its fp32 masters (DeepSpeed: rounded weights, or
// none for a pipeline);
// - tensors of a ZeRO 3 checkpoint keep their shape, with the keys and the step of the other stages
//   (DeepSpeed: bare and flat, which only a ZeRO 3 run can load);
// - ZeRO 0 and elastic checkpoints are converted as well (DeepSpeed refuses the one and fails on the
//   other);
// - metadata and optimizer_state.pt serve ZeRO 3 and the other stages alike (DeepSpeed: those that
//   the source was of).
struct ConvertOptions {
  std::filesystem::path input, output;
  int read_workers = 4;  // threads that open and plan
  int write_workers = stream_threads();
  bool keep_plan = false;  // leave the plan in output/tmp/plan.json
  bool dry_run = false;    // only plan, and measure a sample of at most 256 MiB beside the output
  bool strict = true;      // a pattern that matches no parameter is an error, not a warning
  // Go on without universal_checkpoint_info at tp > 1: no parameter has a special rule. At tp 1
  // there is nothing that it could say.
  bool inject_missing_info = false;
  // At ZeRO 0 DeepSpeed records no order of the optimizer's states. Where nothing proves one, take
  // the module's, biases and norms apart if the groups' weight decay is.
  bool assume_module_order = false;
};

struct ConvertReport {
  int stage = 0, tp_size = 1, pp_size = 1, dp_size = 1;
  int64_t parameters = 0, tensors = 0, elements = 0;
  int64_t files = 0;
  uint64_t bytes = 0;       // of the files
  uint64_t kept = 0;        // of these, what an interrupted conversion had written
  uint64_t free_bytes = 0;  // on the output's file system, before
  std::string refusal;      // of a dry run: why it does not fit
  double seconds = 0;       // of a dry run that fits: expected
  std::vector<std::string> warnings;
};

ConvertReport convert_to_universal(const ConvertOptions& options, const ProgressCallback& progress);

}  // namespace anymesh
