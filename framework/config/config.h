// The configuration of a run, apart from its model: a tree of structs with the defaults beside the
// fields.
//
//   Config config;
//   GptConfig gpt;                                  models/gpt/gpt_config.h
//   FlagTable flags("pretrain_gpt", "...");         framework/config/flags.h
//   add_flags(flags, config);
//   add_flags(flags, gpt);
//   ParseResult parsed = parse(flags, config, {argv + 1, argv + argc});  framework/config/parse.h
//   validate(config, gpt, world_size);
//   BatchPlan plan = plan_batches(config, world_size);
//
// Names and defaults are those of Megatron-DeepSpeed (megatron/arguments.py) where it has them.
// Megatron's None is 0 or empty here; plan_batches() derives the values that then follow from other
// fields.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/comm/topology.h"
#include "framework/config/batch_ramp.h"
#include "framework/config/engine_config.h"
#include "framework/util/errors.h"

namespace anymesh {

struct ParallelConfig {
  int tp = 1;                // --tensor-model-parallel-size
  int pp = 1;                // --pipeline-model-parallel-size
  int layers_per_chunk = 0;  // --num-layers-per-virtual-pipeline-stage; 0 = one chunk
  bool sequence_parallel = false;
  int same_bits = 0;  // blocks; 0 = off
  int ep = 1;         // --expert-model-parallel-size
  int etp = 0;        // --expert-tensor-parallel-size; 0 = tp
  bool whole_experts() const { return tp > 1 && etp == 1; }
  // `layers`: the model's.
  Topology topology(int dp, int64_t layers) const {
    return {.pp_size = pp,
            .dp_size = dp,
            .tp_size = tp,
            .ep_size = ep,
            .whole_experts = whole_experts(),
            .chunks = layers_per_chunk == 0 ? 1 : static_cast<int>(layers / pp / layers_per_chunk)};
  }
};

// The devices that ranks compute on and the backend that they communicate by. place() in
// framework/run/device.h chooses for a field that is empty.
struct DeviceConfig {
  std::string device;  // cpu | cuda; empty = cuda if every machine has a GPU, else cpu
  bool deterministic_mode = false;
  std::string distributed_backend;  // mpi | nccl; empty = nccl on cuda, mpi on cpu
};

struct BatchConfig {
  int micro_batch_size = 1;
  int global_batch_size = 0;  // 0 = micro_batch_size * gradient_accumulation_steps * dp
  int64_t train_iters = 0;    // exactly one of these two is set
  int64_t train_samples = 0;
  std::vector<std::string> rampup_batch_size;  // see BatchRamp; with train_samples
  int gradient_accumulation_steps = 0;         // 0 = derived; only --deepspeed_config sets it
};

// Lengths from which plan_batches() derives those of LrSchedule.
struct ScheduleConfig {
  int64_t lr_decay_iters = 0;    // 0 = train_iters
  int64_t lr_decay_samples = 0;  // 0 = train_samples
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction;  // of the decay length
  int64_t lr_wsd_decay_iters = 0;            // with WSD, one of these two is set
  int64_t lr_wsd_decay_samples = 0;
};

struct PrecisionConfig {
  bool bf16 = false, fp16 = false;   // otherwise fp32
  std::optional<double> loss_scale;  // fp16's static scale; unset or 0 = dynamic, with these four:
  double initial_loss_scale = 4294967296.0, min_loss_scale = 1.0;
  int64_t loss_scale_window = 1000, hysteresis = 2;

  LossScaler scaler() const;
};

struct DataConfig {
  std::vector<std::string> data_path;  // PREFIX... or WEIGHT PREFIX WEIGHT PREFIX...
  std::string split = "969, 30, 1";
  std::string tokenizer_type;          // never empty after parse()
  std::string vocab_file, merge_file;  // GPT2BPETokenizer
  std::string tokenizer_model;         // HFTokenizer, TikTokenizer and those of SentencePiece
  std::string tiktoken_pattern = "v2";
  int tiktoken_special_tokens = 1000;
  int vocab_size = 0;  // NullTokenizer and mock_data; TikTokenizer, where 0 means all of the file
  bool mock_data = false;
  bool own = false;  // the program brings its data: the fields above are unused

  int eod_token = -1;  // the token that ends documents, from the tokenizer; -1 = none

  // Fills in a tokenizer_type that no flag gives.
  void choose_tokenizer() {
    if (tokenizer_type.empty())
      tokenizer_type = mock_data             ? "NullTokenizer"
                       : !vocab_file.empty() ? "GPT2BPETokenizer"
                                             : "ByteLevelTokenizer";
  }
};

// Whether a --tokenizer-type takes a --tokenizer-model.
inline bool takes_tokenizer_model(std::string_view type) {
  return type.ends_with("SentencePieceTokenizer") || type == "Llama2Tokenizer" ||
         type == "HFTokenizer" || type == "HuggingFaceTokenizer" || type == "TikTokenizer";
}

struct CheckpointConfig {
  std::string save, load;
  std::string pretrained_checkpoint;  // what the run begins with, before --load
  int64_t save_interval = 0;          // 0 = at the end only
  int64_t save_total_limit = 0;       // checkpoints to keep; 0 = all, or 1 if the next is set
  int64_t save_retain_interval = 0;   // keeps checkpoints of steps divisible by it; 0 = none
  bool no_save_optim = false,
       save_weights_only = false;  // synonyms: Megatron's name and a plain one
  bool async_save = false, report_save = false;
  bool save_16bit_model = false, exclude_frozen_parameters = false;
  bool universal_checkpoint = false;
  bool no_load_optim = false, no_load_rng = false, no_load_lr_state = false, finetune = false;
  bool use_checkpoint_args = false;
  std::string load_tag;  // empty = the tag that `latest` names
  bool no_load_strict = false, exit_on_missing_checkpoint = false;
  bool override_same_bits = false;
  bool allow_other_data = false, allow_fresh_moments = false;
  bool verify_checkpoint = false, no_fallback = false;
  bool exit_on_save_failure = false;
  bool override_scheduler = false, use_checkpoint_scheduler = false;  // --...-opt_param-scheduler
  bool verify_resume = false;
  int64_t exit_interval = 0;         // stop after an iteration divisible by it; 0 = never
  double exit_duration_in_mins = 0;  // 0 = never
  std::string kill_switch_file, save_switch_file;
};

constexpr int kMostLocalRanks = 1024, kMostPretendRanks = 1 << 20;
constexpr double kMostTimeoutMinutes = 1e6;  // two years; as nanoseconds they fit in 64 bits

struct RunConfig {
  int local_ranks = 0;  // ranks run as threads of this process; 0 = mpirun starts them
  int pretend_ranks = 0, pretend_rank = 0;  // one rank of so many runs alone; 0 = no
  uint64_t seed = 1234;
  int64_t eval_interval = 1000, eval_iters = 100, log_interval = 100;
  bool eval_given = false;  // a flag asks for validation, not the default
  std::string loss_csv, tensorboard_dir;
  double distributed_timeout_minutes = 10;
  bool dry_run = false;
  bool report_memory = false, report_comm = false;
  int64_t profile_step = 0;  // 0 = none
  std::string trace;
  std::string deepspeed_config;  // JSON file that parse() reads into this tree

  // Returns --distributed-timeout-minutes, clamped to its bounds so that it can be used before
  // validate().
  std::chrono::seconds patience() const {
    return std::chrono::ceil<std::chrono::seconds>(std::chrono::duration<double, std::ratio<60>>(
        std::clamp(distributed_timeout_minutes, 1e-3, kMostTimeoutMinutes)));
  }
};

struct Config {
  ParallelConfig parallel;
  DeviceConfig device;
  BatchConfig batch;
  ScheduleConfig schedule;
  PrecisionConfig precision;
  DataConfig data;
  CheckpointConfig checkpoint;
  RunConfig run;
  EngineConfig engine;  // engine_config() completes it
};

// The values derived from a Config and a world size. Warmup and decay are in samples, as in
// Megatron, which multiplies iterations by the global batch size. A warmup fraction may end between
// two samples.
struct BatchPlan {
  int dp = 1;
  int global_batch_size = 1;
  int samples_at_once = 1;   // a micro-batch of every data-parallel rank
  int num_microbatches = 1;  // per data-parallel rank and step of the full size
  BatchRamp ramp;            // the steps before these
  int64_t train_iters = 0;   // train_samples are rounded down to whole steps, as in Megatron
  double lr_warmup_samples = 0;
  double lr_decay_samples = 0;
  double lr_wsd_decay_samples = 0;
};

// Returns how many of the newest checkpoints to keep (0 = all). --save-retain-interval keeps older
// ones as well.
int64_t save_limit(const CheckpointConfig& checkpoint);

// Returns whether --load and --save name the same folder, compared lexically after normalisation.
// Such a command both starts a run and resumes it.
bool goes_on_in_place(const CheckpointConfig& checkpoint);

// REQUIRES: validate(config, world_size) passed.
BatchPlan plan_batches(const Config& config, int world_size);

// Returns `config.engine` with the values that follow from other flags.
EngineConfig engine_config(const Config& config, const BatchPlan& plan,
                           std::shared_ptr<const SaveLock> save_lock);

// Throws UserError, naming the flags, unless `config` can run on `world_size` ranks. Checks the
// rules of the table again, for a Config that no flags have filled. A model adds its own rules: its
// validate(config, model, world_size) calls this one first.
void validate(const Config& config, int world_size);

}  // namespace anymesh
