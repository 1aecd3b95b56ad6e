#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>

#include "framework/config/config.h"
#include "framework/config/parse.h"
#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

// The rules of the table hold for the fields, so another Config's flags can check them.
void check_flags(const Config& config) {
  Config checked;
  checked.engine.zero.optimizer.own = config.engine.zero.optimizer.own;    // one more choice,
  checked.engine.zero.optimizer.name = config.engine.zero.optimizer.name;  // under its name
  FlagTable flags("", "");
  add_flags(flags, checked);
  checked = config;
  checked.data.choose_tokenizer();
  flags.check();
}

void check_mesh(const ParallelConfig& parallel, const RunConfig& run, int world_size) {
  const int64_t model_ranks = int64_t{parallel.tp} * parallel.pp;
  if (world_size % model_ranks == 0) return;
  const int64_t below = world_size / model_ranks * model_ranks;
  std::string fix = run.local_ranks > 0 ? "; try --local-ranks " : "; try mpirun -n ";
  if (below > 0) fix += std::to_string(below) + (run.local_ranks > 0 ? " or " : " or -n ");
  require(false, "world size ", world_size, " is not divisible by ",
          with("--tensor-model-parallel-size", parallel.tp), " x ",
          with("--pipeline-model-parallel-size", parallel.pp), " = ", model_ranks, fix,
          below + model_ranks);
}

void check_pipeline(const ParallelConfig& parallel, const std::string& schedule) {
  if (schedule == "1f1b") return;
  const std::string given = "--pipeline-schedule " + schedule;
  require(parallel.pp > 1, given, " needs stages that wait for each other, got ",
          with("--pipeline-model-parallel-size", parallel.pp),
          "; leave it out, or use --pipeline-model-parallel-size 2");
  require(parallel.layers_per_chunk == 0, given, " has stages of one chunk, got ",
          with("--num-layers-per-virtual-pipeline-stage", parallel.layers_per_chunk),
          "; leave one of them out");
}

void check_experts(const ParallelConfig& parallel, int64_t dp) {
  const std::string ep = with("--expert-model-parallel-size", parallel.ep),
                    etp = with("--expert-tensor-parallel-size", parallel.etp),
                    tp = with("--tensor-model-parallel-size", parallel.tp);
  require(parallel.etp == 0 || parallel.etp == 1 || parallel.etp == parallel.tp, etp,
          " must be 1 or ", tp,
          ": tensor parallelism cuts each expert on all its ranks, or on none");
  require(!parallel.whole_experts() || parallel.sequence_parallel, etp, " below ", tp,
          " needs --sequence-parallel: each tensor-parallel rank sends its own part of the "
          "sequence to the experts");
  const int64_t ranks = parallel.whole_experts() ? dp * parallel.tp : dp;
  require(ranks % parallel.ep == 0, ep, " must divide the data-parallel size (", dp, ")",
          parallel.whole_experts() ? " x " + tp : "", ": experts are spread over these ranks");
}

void check_same_bits(const ParallelConfig& parallel) {
  const int blocks = parallel.same_bits;
  if (blocks == 0) return;
  const std::string given = with("--same-bits", blocks);
  require(std::has_single_bit(static_cast<unsigned>(blocks)), given,
          ": expected 1, 2, 4 or 8 blocks, which are added as a binary tree; use --same-bits 4");
  require(blocks % parallel.tp == 0, given, " must be divisible by ",
          with("--tensor-model-parallel-size", parallel.tp), "; use --same-bits ",
          std::bit_ceil(static_cast<unsigned>(parallel.tp)),
          " with a tensor-parallel size of 1, 2, 4 or 8");
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
    require(zero_stage >= least, asked, " needs ", what, ": ", with("--zero-stage", zero_stage),
            " must be at least ", least, "; use ", stage, " ", asked, device == "nvme" ? path : "");
    require(device != "nvme" || !offload.nvme_path.empty(), asked,
            " needs a folder for its file, got no --nvme-path; use ", stage, " ", asked, path);
  };
  check("--offload-optimizer", offload.optimizer, 1, "a partitioned optimizer");
  check("--offload-param", offload.param, 3, "partitioned parameters");
}

void check_batch(const BatchConfig& batch, int64_t dp) {
  const int64_t samples = batch.micro_batch_size * dp;  // one micro-batch on every dp rank
  const std::string product = with("--micro-batch-size", batch.micro_batch_size) +
                              " x data-parallel size (" + std::to_string(dp) + ")";
  require(samples <= INT32_MAX, product, " is too large");
  const int64_t global = batch.global_batch_size;
  const int64_t below = global / samples * samples;
  require(global % samples == 0, with("--global-batch-size", global), " must be divisible by ",
          product, " = ", samples, "; use --global-batch-size ",
          below > 0 ? std::to_string(below) + " or " : "", below + samples);
  const int64_t steps = batch.gradient_accumulation_steps;
  require(steps == 0 || global == 0 || global == steps * samples,
          with("--global-batch-size", global), " must equal ",
          with("gradient_accumulation_steps", steps), " x ", product, " = ", steps * samples);
  require(steps * samples <= INT32_MAX, product, " x ", with("gradient_accumulation_steps", steps),
          " is too large");
  const BatchRamp ramp = parse_batch_ramp(batch.rampup_batch_size, global);
  for (const int64_t size : {ramp.start, ramp.increment})
    require(size % samples == 0, "--rampup-batch-size ", joined(batch.rampup_batch_size, " "), ": ",
            size, " must be divisible by ", product, " = ", samples);
  require(ramp.samples <= batch.train_samples, "--rampup-batch-size ",
          joined(batch.rampup_batch_size, " "), ": expected at most the samples of the run, ",
          with("--train-samples", batch.train_samples));
}

void check_length(const BatchConfig& batch, int global_batch_size) {
  require(batch.train_iters > 0 || batch.train_samples > 0, "give exactly one of ",
          with("--train-iters", batch.train_iters), " and ",
          with("--train-samples", batch.train_samples), "; --help lists all flags");
  require(batch.train_iters <= INT64_MAX / global_batch_size,
          with("--train-iters", batch.train_iters), " x ",
          with("--global-batch-size", global_batch_size), " is too large");
  require(batch.train_samples == 0 || batch.train_samples >= global_batch_size,
          with("--train-samples", batch.train_samples), " is less than one step of ",
          with("--global-batch-size", global_batch_size));
}

void check_numbers(const LrSchedule& schedule, const PrecisionConfig& precision) {
  require(schedule.min_lr <= schedule.max_lr, with("--min-lr", schedule.min_lr),
          " must be between 0 and ", with("--lr", schedule.max_lr));
  require(precision.initial_loss_scale >= precision.min_loss_scale,
          with("--initial-loss-scale", precision.initial_loss_scale), " must be at least ",
          with("--min-loss-scale", precision.min_loss_scale));
}

void check_schedule(const ScheduleConfig& lengths, const std::string& style,
                    const BatchPlan& plan) {
  for (const auto& [flag, iters] : {std::pair("--lr-decay-iters", lengths.lr_decay_iters),
                                    {"--lr-warmup-iters", lengths.lr_warmup_iters},
                                    {"--lr-wsd-decay-iters", lengths.lr_wsd_decay_iters}})
    require(iters <= INT64_MAX / plan.global_batch_size, with(flag, iters), " is too large");
  if (style == "constant") return;
  const auto text = [](double samples) {
    return std::to_string(static_cast<int64_t>(std::min(samples, 9e18)));
  };
  require(plan.lr_warmup_samples < plan.lr_decay_samples, "the warmup of ",
          with("--lr-warmup-iters", lengths.lr_warmup_iters), " / ",
          with("--lr-warmup-samples", lengths.lr_warmup_samples),
          " must be shorter than the decay, which ends after ", text(plan.lr_decay_samples),
          " samples (--lr-decay-iters, --lr-decay-samples)");
  const double flat = plan.lr_decay_samples - plan.lr_warmup_samples;
  require(style != "WSD" || (plan.lr_wsd_decay_samples > 0 && plan.lr_wsd_decay_samples <= flat),
          "--lr-decay-style WSD: the fall of ",
          with("--lr-wsd-decay-iters", lengths.lr_wsd_decay_iters), " / ",
          with("--lr-wsd-decay-samples", lengths.lr_wsd_decay_samples),
          " must have at least 1 and at most the ", text(flat),
          " samples between the warmup and the end of the decay");
}

void check_data(const DataConfig& data) {
  if (data.own) return;
  if (data.tokenizer_type == "NullTokenizer") {
    require(data.vocab_size >= 2, with("--vocab-size", data.vocab_size),
            " must be at least 2 with --mock-data or the NullTokenizer");
  }
  require(data.tokenizer_type != "GPT2BPETokenizer" ||
              (!data.vocab_file.empty() && !data.merge_file.empty()),
          "--tokenizer-type GPT2BPETokenizer needs both --vocab-file and --merge-file");
  require(!takes_tokenizer_model(data.tokenizer_type) || !data.tokenizer_model.empty(),
          "--tokenizer-type ", data.tokenizer_type, " needs --tokenizer-model");
  require(data.mock_data || !data.data_path.empty(), "give --data-path PREFIX, or --mock-data");
}

// Bounds the samples of all validations together; framework/data/gpt_dataset.h counts them.
void check_eval_iters(const RunConfig& run, const BatchPlan& plan) {
  const auto validations = static_cast<uint64_t>(plan.train_iters / run.eval_interval) + 1,
             most = static_cast<uint64_t>(INT64_MAX) / plan.global_batch_size / validations;
  require(static_cast<uint64_t>(run.eval_iters) <= most, with("--eval-iters", run.eval_iters),
          " x ", with("--global-batch-size", plan.global_batch_size), " x validations (",
          validations, ") is too large; at most --eval-iters ", most);
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
  const ParallelConfig& parallel = config.parallel;
  const EngineConfig& engine = config.engine;
  check_flags(config);
  check_mesh(parallel, config.run, world_size);
  check_pipeline(parallel, engine.pipeline_schedule);
  check_device(config.device);
  check_same_bits(parallel);
  check_offload(engine.zero.offload, engine.zero.stage);
  const int dp = world_size / (parallel.tp * parallel.pp);
  check_experts(parallel, dp);
  check_batch(config.batch, dp);
  const BatchPlan plan = plan_batches(config, world_size);
  check_length(config.batch, plan.global_batch_size);
  check_numbers(engine.schedule, config.precision);
  check_schedule(config.schedule, engine.schedule.style, plan);
  check_data(config.data);
  check_eval_iters(config.run, plan);
  const int64_t profiled = config.run.profile_step;
  require(config.batch.train_samples != 0 || profiled <= plan.train_iters,
          with("--profile-step", profiled), ": the run ends at step ", plan.train_iters);
}

}  // namespace anymesh
