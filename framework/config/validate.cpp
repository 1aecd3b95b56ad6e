#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "framework/config/config.h"
#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

void check_parallel(const ParallelConfig& parallel, int zero_stage, const RunConfig& run,
                    int world_size) {
  require_at_least(1, "--tensor-model-parallel-size", parallel.tp);
  require_at_least(1, "--pipeline-model-parallel-size", parallel.pp);
  require(zero_stage >= 0 && zero_stage <= 3,
          with("--zero-stage", zero_stage) + " must be 0, 1, 2 or 3");
  const int64_t model_ranks = int64_t{parallel.tp} * parallel.pp;
  if (world_size % model_ranks == 0) return;
  const int64_t below = world_size / model_ranks * model_ranks;
  std::string fix = run.local_ranks > 0 ? "; try --local-ranks " : "; try mpirun -n ";
  if (below > 0) fix += std::to_string(below) + (run.local_ranks > 0 ? " or " : " or -n ");
  throw UserError("world size " + std::to_string(world_size) + " is not divisible by " +
                  with("--tensor-model-parallel-size", parallel.tp) + " x " +
                  with("--pipeline-model-parallel-size", parallel.pp) + " = " +
                  std::to_string(model_ranks) + fix + std::to_string(below + model_ranks));
}

void check_experts(const ParallelConfig& parallel, int64_t dp) {
  const std::string ep = with("--expert-model-parallel-size", parallel.ep),
                    etp = with("--expert-tensor-parallel-size", parallel.etp),
                    tp = with("--tensor-model-parallel-size", parallel.tp);
  require_at_least(1, "--expert-model-parallel-size", parallel.ep);
  require(parallel.etp == 0 || parallel.etp == 1 || parallel.etp == parallel.tp,
          etp + " must be 1 or " + tp + ": tensor parallelism cuts each expert on all its ranks, " +
              "or on none");
  require(!parallel.whole_experts() || parallel.sequence_parallel,
          etp + " below " + tp +
              " needs --sequence-parallel: each tensor-parallel rank sends its own part of the "
              "sequence to the experts");
  const int64_t ranks = parallel.whole_experts() ? dp * parallel.tp : dp;
  require(ranks % parallel.ep == 0, ep + " must divide the data-parallel size (" +
                                        std::to_string(dp) + ")" +
                                        (parallel.whole_experts() ? " x " + tp : "") +
                                        ": experts are spread over these ranks");
}

void check_device(const DeviceConfig& config) {
  require(config.device != "cpu" || config.distributed_backend != "nccl",
          "--distributed-backend nccl moves tensors between GPUs, got --device cpu; use "
          "--distributed-backend mpi, or --device cuda");
}

void check_offload(const OffloadConfig& offload, int zero_stage) {
  const auto check = [&](const char* flag, const std::string& device, int least, const char* what) {
    if (device == "none") return;
    const std::string asked = std::string(flag) + " " + device, path = " --nvme-path /local_nvme",
                      stage = "--zero-stage " + std::to_string(std::max(zero_stage, least));
    require(zero_stage >= least, asked + " needs " + what + ": " +
                                     with("--zero-stage", zero_stage) + " must be at least " +
                                     std::to_string(least) + "; use " + stage + " " + asked +
                                     (device == "nvme" ? path : ""));
    require(device != "nvme" || !offload.nvme_path.empty(),
            asked + " needs a folder for its file, got no --nvme-path; use " + stage + " " + asked +
                path);
  };
  check("--offload-optimizer", offload.optimizer, 1, "a partitioned optimizer");
  check("--offload-param", offload.param, 3, "partitioned parameters");
}

void check_batch(const BatchConfig& batch, int64_t dp) {
  require_at_least(1, "--micro-batch-size", batch.micro_batch_size);
  require_at_least(0, "--global-batch-size", batch.global_batch_size);
  const int64_t samples = batch.micro_batch_size * dp;  // one micro-batch on every dp rank
  const std::string product = with("--micro-batch-size", batch.micro_batch_size) +
                              " x data-parallel size (" + std::to_string(dp) + ")";
  require(samples <= INT32_MAX, product + " is too large");
  const int64_t global = batch.global_batch_size;
  const int64_t below = global / samples * samples;
  const std::string choices = (below > 0 ? std::to_string(below) + " or " : std::string()) +
                              std::to_string(below + samples);
  require(global % samples == 0, with("--global-batch-size", global) + " must be divisible by " +
                                     product + " = " + std::to_string(samples) +
                                     "; use --global-batch-size " + choices);
  const int64_t steps = batch.gradient_accumulation_steps;
  require(steps == 0 || global == 0 || global == steps * samples,
          with("--global-batch-size", global) + " must equal " +
              with("gradient_accumulation_steps", steps) + " x " + product + " = " +
              std::to_string(steps * samples));
  require(steps * samples <= INT32_MAX,
          product + " x " + with("gradient_accumulation_steps", steps) + " is too large");
  const BatchRamp ramp = parse_batch_ramp(batch.rampup_batch_size, global);
  for (const int64_t size : {ramp.start, ramp.increment})
    require(size % samples == 0, "--rampup-batch-size " + joined(batch.rampup_batch_size, " ") +
                                     ": " + std::to_string(size) + " must be divisible by " +
                                     product + " = " + std::to_string(samples));
  require(ramp.samples <= batch.train_samples, "--rampup-batch-size " +
                                                   joined(batch.rampup_batch_size, " ") +
                                                   ": expected at most the samples of the run, " +
                                                   with("--train-samples", batch.train_samples));
}

void check_length(const BatchConfig& batch, int global_batch_size) {
  require(batch.train_iters >= 0, with("--train-iters", batch.train_iters) + " is negative");
  require(batch.train_samples >= 0, with("--train-samples", batch.train_samples) + " is negative");
  require((batch.train_iters > 0) != (batch.train_samples > 0),
          "give exactly one of " + with("--train-iters", batch.train_iters) + " and " +
              with("--train-samples", batch.train_samples) + "; --help lists all flags");
  require(batch.train_iters <= INT64_MAX / global_batch_size,
          with("--train-iters", batch.train_iters) + " x " +
              with("--global-batch-size", global_batch_size) + " is too large");
  require(batch.train_samples == 0 || batch.train_samples >= global_batch_size,
          with("--train-samples", batch.train_samples) + " is less than one step of " +
              with("--global-batch-size", global_batch_size));
}

void check_optimizer(const LrSchedule& schedule, const ZeroConfig& zero) {
  const double lr = schedule.max_lr, min_lr = schedule.min_lr;
  require(lr > 0, with("--lr", lr) + " is required and must be positive");
  require(min_lr >= 0 && min_lr <= lr,
          with("--min-lr", min_lr) + " must be between 0 and " + with("--lr", lr));
  require_at_least(0, "--weight-decay", zero.weight_decay);
  const AdamOptions& adam = zero.adam;
  require(adam.beta1 >= 0 && adam.beta1 < 1,
          with("--adam-beta1", adam.beta1) + " must be in [0, 1)");
  require(adam.beta2 >= 0 && adam.beta2 < 1,
          with("--adam-beta2", adam.beta2) + " must be in [0, 1)");
  require(adam.eps > 0, with("--adam-eps", adam.eps) + " must be positive");
  require(zero.clip_grad >= 0,
          with("--clip-grad", zero.clip_grad) + " must be positive, or 0 for no clipping");
}

void check_precision(const PrecisionConfig& precision) {
  const double scale = precision.loss_scale.value_or(0);
  require(scale >= 0,
          with("--loss-scale", scale) + " must be positive, or 0 for a scale that adapts");
  require(precision.min_loss_scale > 0,
          with("--min-loss-scale", precision.min_loss_scale) + " must be positive");
  require(precision.initial_loss_scale >= precision.min_loss_scale,
          with("--initial-loss-scale", precision.initial_loss_scale) + " must be at least " +
              with("--min-loss-scale", precision.min_loss_scale));
  require_at_least(1, "--loss-scale-window", precision.loss_scale_window);
  require_at_least(1, "--hysteresis", precision.hysteresis);
}

void check_schedule(const ScheduleConfig& lengths, const std::string& style,
                    const BatchPlan& plan) {
  const double fraction = lengths.lr_warmup_fraction.value_or(0);
  require(fraction >= 0 && fraction < 1,
          with("--lr-warmup-fraction", fraction) + " must be in [0, 1)");
  const auto check_length = [](const char* flag, int64_t value, int64_t samples_per_unit) {
    require(value >= 0 && value <= INT64_MAX / samples_per_unit,
            with(flag, value) + " is negative or too large");
  };
  check_length("--lr-decay-iters", lengths.lr_decay_iters, plan.global_batch_size);
  check_length("--lr-decay-samples", lengths.lr_decay_samples, 1);
  check_length("--lr-warmup-iters", lengths.lr_warmup_iters, plan.global_batch_size);
  check_length("--lr-warmup-samples", lengths.lr_warmup_samples, 1);
  check_length("--lr-wsd-decay-iters", lengths.lr_wsd_decay_iters, plan.global_batch_size);
  check_length("--lr-wsd-decay-samples", lengths.lr_wsd_decay_samples, 1);
  if (style == "constant") return;
  const auto text = [](double samples) {
    return std::to_string(static_cast<int64_t>(std::min(samples, 9e18)));
  };
  require(plan.lr_warmup_samples < plan.lr_decay_samples,
          "the warmup of " + with("--lr-warmup-iters", lengths.lr_warmup_iters) + " / " +
              with("--lr-warmup-samples", lengths.lr_warmup_samples) +
              " must be shorter than the decay, which ends after " + text(plan.lr_decay_samples) +
              " samples (--lr-decay-iters, --lr-decay-samples)");
  const double flat = plan.lr_decay_samples - plan.lr_warmup_samples;
  require(style != "WSD" || (plan.lr_wsd_decay_samples > 0 && plan.lr_wsd_decay_samples <= flat),
          "the fall of " + with("--lr-wsd-decay-iters", lengths.lr_wsd_decay_iters) + " / " +
              with("--lr-wsd-decay-samples", lengths.lr_wsd_decay_samples) +
              " must have at least 1 and at most the " + text(flat) +
              " samples between the warmup and the end of the decay");
}

void check_data(const DataConfig& data, uint64_t seed) {
  if (data.tokenizer_type == "NullTokenizer") {
    require(data.vocab_size >= 2, with("--vocab-size", data.vocab_size) +
                                      " must be at least 2 with --mock-data or the NullTokenizer");
  }
  require(data.tokenizer_type != "GPT2BPETokenizer" ||
              (!data.vocab_file.empty() && !data.merge_file.empty()),
          "the GPT2BPETokenizer needs both --vocab-file and --merge-file");
  require(!takes_tokenizer_model(data.tokenizer_type) || !data.tokenizer_model.empty(),
          "the " + data.tokenizer_type + " needs --tokenizer-model");
  require(data.mock_data || !data.data_path.empty(), "give --data-path PREFIX, or --mock-data");
  require(seed <= UINT32_MAX,
          with("--seed", seed) + " must fit in 32 bits, as the shuffling of samples demands");
}

// Refuses --async-save beside flags that it cannot serve. A thread cannot run a save that needs
// other ranks, and state on NVMe would have to be copied into memory.
void check_async_save(const CheckpointConfig& checkpoint, const OffloadConfig& offload) {
  if (!checkpoint.async_save) return;
  const auto refuse = [](bool beside, const std::string& flag, const char* why) {
    require(!beside, "--async-save cannot save " + flag + ", " + why + "; keep one of them");
  };
  const char* gathered = "which gathers weights from all ranks while it writes";
  refuse(checkpoint.no_save_optim, "with --no-save-optim", gathered);
  refuse(checkpoint.save_weights_only, "with --save-weights-only", gathered);
  refuse(checkpoint.save_16bit_model, "with --save-16bit-model", gathered);
  const char* on_disk = "whose state it would copy to memory";
  refuse(offload.optimizer_on_disk(), "with --offload-optimizer nvme", on_disk);
  refuse(offload.params_on_disk(), "with --offload-param nvme", on_disk);
}

// Bounds the samples of all validations together; framework/data/gpt_dataset.h counts them.
void check_eval_iters(const RunConfig& run, const BatchPlan& plan) {
  require_at_least(0, "--eval-iters", run.eval_iters);
  const auto validations = static_cast<uint64_t>(plan.train_iters / run.eval_interval) + 1,
             most = static_cast<uint64_t>(INT64_MAX) / plan.global_batch_size / validations;
  require(static_cast<uint64_t>(run.eval_iters) <= most,
          with("--eval-iters", run.eval_iters) + " x " +
              with("--global-batch-size", plan.global_batch_size) + " x validations (" +
              std::to_string(validations) + ") is too large; at most --eval-iters " +
              std::to_string(most));
}

void check_run(const Config& config, const BatchPlan& plan) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  const RunConfig& run = config.run;
  require(!checkpoint.verify_resume || run.eval_iters > 0,
          "--verify-resume compares validation losses: " + with("--eval-iters", run.eval_iters) +
              " must be at least 1");
  require(!checkpoint.verify_resume || !checkpoint.save.empty() || !checkpoint.load.empty(),
          "--verify-resume has no effect without --save or --load");
  require_at_least(0, "--save-interval", checkpoint.save_interval);
  require_at_least(0, "--save-total-limit", checkpoint.save_total_limit);
  require_at_least(0, "--save-retain-interval", checkpoint.save_retain_interval);
  require_at_least(0, "--exit-duration-in-mins", checkpoint.exit_duration_in_mins);
  require_at_least(0, "--exit-interval", checkpoint.exit_interval);
  require_at_least(1, "--eval-interval", run.eval_interval);
  require(
      run.distributed_timeout_minutes > 0,
      with("--distributed-timeout-minutes", run.distributed_timeout_minutes) + " must be positive");
  require(run.distributed_timeout_minutes <= kMostTimeoutMinutes,
          with("--distributed-timeout-minutes", run.distributed_timeout_minutes) +
              " must be at most " + std::to_string(static_cast<int64_t>(kMostTimeoutMinutes)));
  check_eval_iters(run, plan);
  require_at_least(1, "--log-interval", run.log_interval);
  require_at_least(0, "--local-ranks", run.local_ranks);
  require_at_least(0, "--profile-step", run.profile_step);
  require(config.batch.train_samples != 0 || run.profile_step <= plan.train_iters,
          with("--profile-step", run.profile_step) + ": the run ends at step " +
              std::to_string(plan.train_iters));
}

}  // namespace

int64_t save_limit(const CheckpointConfig& checkpoint) {
  const bool only_retained =
      checkpoint.save_total_limit == 0 && checkpoint.save_retain_interval > 0;
  return only_retained ? 1 : checkpoint.save_total_limit;
}

bool goes_on_in_place(const CheckpointConfig& checkpoint) {
  const auto plain = [](const std::string& folder) {
    return (std::filesystem::path(folder) / "").lexically_normal();
  };
  return plain(checkpoint.load) == plain(checkpoint.save);
}

BatchPlan plan_batches(const Config& config, int world_size) {
  const BatchConfig& batch = config.batch;
  const ScheduleConfig& lengths = config.schedule;
  BatchPlan plan;
  plan.dp = world_size / (config.parallel.tp * config.parallel.pp);
  plan.samples_at_once = batch.micro_batch_size * plan.dp;
  const int steps = std::max(1, batch.gradient_accumulation_steps);
  plan.global_batch_size =
      batch.global_batch_size != 0 ? batch.global_batch_size : plan.samples_at_once * steps;
  plan.num_microbatches = plan.global_batch_size / plan.samples_at_once;
  plan.ramp = parse_batch_ramp(batch.rampup_batch_size, plan.global_batch_size);
  if (batch.train_samples != 0) {
    plan.train_iters = plan.ramp.steps(0, batch.train_samples, plan.global_batch_size);
    plan.lr_decay_samples =
        lengths.lr_decay_samples != 0 ? lengths.lr_decay_samples : batch.train_samples;
    plan.lr_warmup_samples = lengths.lr_warmup_samples;
    plan.lr_wsd_decay_samples = lengths.lr_wsd_decay_samples;
  } else {
    plan.train_iters = batch.train_iters;
    plan.lr_decay_samples = static_cast<double>(lengths.lr_decay_iters != 0 ? lengths.lr_decay_iters
                                                                            : batch.train_iters) *
                            plan.global_batch_size;
    plan.lr_warmup_samples = static_cast<double>(lengths.lr_warmup_iters) * plan.global_batch_size;
    plan.lr_wsd_decay_samples =
        static_cast<double>(lengths.lr_wsd_decay_iters) * plan.global_batch_size;
  }
  if (lengths.lr_warmup_fraction) {
    plan.lr_warmup_samples = *lengths.lr_warmup_fraction * plan.lr_decay_samples;
  }
  return plan;
}

LossScaler PrecisionConfig::scaler() const {
  const double fixed = loss_scale.value_or(0);
  if (!fp16 || fixed != 0) return {.scale = fp16 ? fixed : 1};
  return {.dynamic = true,
          .scale = initial_loss_scale,
          .min_scale = min_loss_scale,
          .window = loss_scale_window,
          .hysteresis = hysteresis,
          .hysteresis_left = hysteresis};
}

EngineConfig engine_config(const Config& config, const BatchPlan& plan,
                           std::shared_ptr<const SaveLock> save_lock) {
  EngineConfig engine = config.engine;
  engine.schedule.warmup_samples = plan.lr_warmup_samples;
  engine.schedule.decay_samples = plan.lr_decay_samples;
  engine.schedule.wsd_decay_samples = plan.lr_wsd_decay_samples;
  engine.scaler = config.precision.scaler();
  engine.global_batch_size = plan.global_batch_size;
  engine.ramp = plan.ramp;
  engine.micro_batch_size = config.batch.micro_batch_size;
  engine.dropout_seed = config.run.seed;
  engine.patience = config.run.patience();
  engine.save_lock = std::move(save_lock);
  return engine;
}

void validate(const Config& config, int world_size) {
  const EngineConfig& engine = config.engine;
  check_parallel(config.parallel, engine.zero.stage, config.run, world_size);
  check_device(config.device);
  check_offload(engine.zero.offload, engine.zero.stage);
  const int dp = world_size / (config.parallel.tp * config.parallel.pp);
  check_experts(config.parallel, dp);
  check_batch(config.batch, dp);
  const BatchPlan plan = plan_batches(config, world_size);
  check_length(config.batch, plan.global_batch_size);
  check_optimizer(engine.schedule, engine.zero);
  check_precision(config.precision);
  check_schedule(config.schedule, engine.schedule.style, plan);
  check_data(config.data, config.run.seed);
  check_async_save(config.checkpoint, engine.zero.offload);
  check_run(config, plan);
}

}  // namespace anymesh
