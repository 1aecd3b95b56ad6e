// The part of a run's configuration that the engine uses. A flag sets the very field that the
// engine reads: add_flags() (parse.h) declares flags over `Config::engine`, and pretrain() gives
// that struct to the engine. A program without flags fills it in itself:
//
//   Engine engine(model, grid, {.zero = {.stage = 2}, .schedule = {.max_lr = 1e-3}, ...});
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/config/batch_ramp.h"
#include "framework/config/flags.h"
#include "framework/optim/loss_scaler.h"
#include "framework/optim/lr_scheduler.h"
#include "framework/optim/options.h"

namespace anymesh {

class SaveLock;

// Where a rank keeps the state that ZeRO partitions: "none" = on the device it computes on, "cpu" =
// in the host's memory, "nvme" = in a file.
struct OffloadConfig {
  std::string optimizer = "none", param = "none";
  std::string nvme_path;  // a folder, for a swap file of each rank

  bool optimizer_on_disk() const { return optimizer == "nvme"; }
  bool params_on_disk() const { return param == "nvme"; }
};

struct ZeroConfig {
  int stage = 0;  // 0, 1, 2 or 3
  OptimizerConfig optimizer;
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0 = no clipping
  bool grad_reduce_in_bf16 = false, overlap_param_gather = false;
  OffloadConfig offload;
};

// The action when ranks disagree about a tag (DeepSpeed's checkpoint.tag_validation): nothing, a
// warning, or an error. Unless it is an error, all ranks use rank 0's tag.
enum class TagValidation { Ignore, Warn, Fail };
inline constexpr const char* kTagValidations[] = {"Ignore", "Warn", "Fail"};  // their names

// Facts about the model. Checkpoints store the sizes, which a conversion to another tp needs.
struct ModelFacts {
  int seq_length = 0;
  int64_t vocab_size = 0;         // the tokenizer's
  int64_t padded_vocab_size = 0;  // rows over all tp ranks
  // For check_memory(): what a layer keeps of a token for its backward, at least, in elements over
  // all tp ranks: its input, and the rest. 0 = unknown.
  int64_t layers = 0, kept_input = 0, kept_inside = 0;
  std::vector<std::string> flags;  // a checkpoint must have been made with the same ones
  // If the model trains an adapter and all else is frozen, its base: flags that say which adapter,
  // the first of them 0 in a checkpoint of a base alone. Else empty.
  std::vector<std::string> adapter_flags;
  std::vector<std::string> training_flags;  // a load says where these differ
  bool all_stages_read_data = false;        // else the first and the last
  bool keeps_bits = false;                  // it has the same bits on every mesh (--same-bits)
  std::string gpu_note;                     // printed at the start of a run on GPUs
};

// It is the same on every rank.
struct EngineConfig {
  ZeroConfig zero;
  LrSchedule schedule;
  LossScaler scaler;  // for fp16
  int64_t global_batch_size = 1, micro_batch_size = 1;
  BatchRamp ramp;                          // towards global_batch_size
  std::string pipeline_schedule = "1f1b";  // or "zb-h1" (pipeline/schedule.h)
  bool activation_checkpointing = false;
  std::vector<std::string> freeze;  // patterns for freeze_params() (param_spec.h)
  bool check_for_nan = true;
  uint64_t dropout_seed = 1234;

  ModelFacts model;
  std::vector<Setting> settings;  // every flag, stored in checkpoints as Megatron's `args`
  TagValidation tag_validation = TagValidation::Warn;
  std::chrono::seconds patience{600};  // how long a save waits for absent ranks
  // The lock on the folder that the run saves to, held for as long as the run lasts. If it is null
  // or locks another folder, each save takes a lock of its own.
  std::shared_ptr<const SaveLock> save_lock;
};

}  // namespace anymesh
