#include "framework/config/parse.h"

#include "framework/config/command_line.h"
#include "framework/config/deepspeed_json.h"
#include "framework/config/flag_rules.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

void add_parallel_flags(FlagTable& flags, ParallelConfig& parallel, EngineConfig& engine) {
  flags.group("Parallelism");
  flags.add("tensor-model-parallel-size", parallel.tp, "ranks that share each layer");
  flags.add("sequence-parallel", parallel.sequence_parallel,
            "cut the sequence over those ranks where they would repeat each other's work");
  flags.add("pipeline-model-parallel-size", parallel.pp,
            "stages of consecutive layers; data parallelism takes the remaining factor of the "
            "world size");
  flags.add("expert-model-parallel-size", parallel.ep,
            "ranks that share a layer's experts, out of the data-parallel ones; tokens travel to "
            "the experts that they choose");
  flags.alias("moe-expert-parallel-size", "expert-model-parallel-size");
  flags.add("expert-tensor-parallel-size", parallel.etp,
            "tensor-parallel ranks that cut each expert: all, or with 1 none, and experts are "
            "spread over them too",
            "--tensor-model-parallel-size");
  flags.add("zero-stage", engine.zero.stage,
            "data-parallel ranks partition: 0 nothing, 1 the optimizer state, 2 also the "
            "gradients, 3 also the parameters");
  flags.add("activation-checkpointing", engine.activation_checkpointing,
            "keep only the input of each layer, and repeat its forward pass in the backward pass");
}

void add_device_flags(FlagTable& flags, DeviceConfig& device) {
  flags.add("device", device.device, "device of the ranks: cpu, or cuda with one GPU per rank",
            "cuda if every machine has a GPU, else cpu");
  flags.add(
      "distributed-backend", device.distributed_backend,
      "transport between ranks on GPUs: nccl, or mpi through host memory (ranks may share a GPU); "
      "always mpi on CPUs",
      "nccl on cuda, mpi on cpu");
  flags.add("deterministic-mode", device.deterministic_mode,
            "on GPUs, only kernels that add in a fixed order, so that a run repeats bit for bit; "
            "attention then keeps its weights in memory. CPUs always do");
}

void add_offload_flags(FlagTable& flags, OffloadConfig& offload) {
  flags.add("offload-optimizer", offload.optimizer,
            "place of the optimizer state: none (where it is used), cpu or nvme (streamed from "
            "and to a file at each step); needs --zero-stage 1 or more");
  flags.add("offload-param", offload.param,
            "place of the parameters' partition, which is read when a layer runs; needs "
            "--zero-stage 3");
  flags.add(
      "nvme-path", offload.nvme_path,
      "folder for the files of nvme, best on a local disk; they vanish with the run. Only this "
      "flag may differ between ranks");
}

void add_batch_flags(FlagTable& flags, BatchConfig& batch) {
  flags.group("Batch and length");
  flags.add("micro-batch-size", batch.micro_batch_size, "samples per forward pass");
  flags.add("global-batch-size", batch.global_batch_size, "samples per step",
            "micro-batch size x data-parallel size");
  flags.add("rampup-batch-size", batch.rampup_batch_size,
            "START INCREMENT SAMPLES: grow the batch from START to --global-batch-size over so "
            "many samples; needs --train-samples",
            "none");
  flags.add("train-iters", batch.train_iters, "steps to train; this or --train-samples", "none");
  flags.add("train-samples", batch.train_samples,
            "samples to train, rounded down to whole steps; this or --train-iters", "none");
}

void add_optimizer_flags(FlagTable& flags, ScheduleConfig& lengths, EngineConfig& engine) {
  flags.group("Optimizer and learning rate");
  flags.add("lr", engine.schedule.max_lr, "peak learning rate", "required");
  flags.add("min-lr", engine.schedule.min_lr, "floor of the decay");
  flags.add("lr-decay-style", engine.schedule.style,
            "constant, linear, cosine, inverse-square-root or WSD (flat until the last steps)");
  flags.add("lr-decay-iters", lengths.lr_decay_iters,
            "steps after which the rate stays at the floor", "--train-iters");
  flags.add("lr-decay-samples", lengths.lr_decay_samples, "the same in samples", "--train-samples");
  flags.add("lr-warmup-iters", lengths.lr_warmup_iters, "steps of linear warmup");
  flags.add("lr-warmup-samples", lengths.lr_warmup_samples, "samples of linear warmup");
  flags.add("lr-warmup-fraction", lengths.lr_warmup_fraction,
            "warmup as a fraction of the decay length");
  flags.add("lr-wsd-decay-style", engine.schedule.wsd_decay_style,
            "how WSD falls: exponential, linear, cosine or minus_sqrt");
  flags.add("lr-wsd-decay-iters", lengths.lr_wsd_decay_iters,
            "steps that WSD falls for, the last of --lr-decay-iters", "required by WSD");
  flags.add("lr-wsd-decay-samples", lengths.lr_wsd_decay_samples, "the same in samples",
            "required by WSD with --train-samples");
  flags.add("weight-decay", engine.zero.weight_decay, "AdamW's decoupled weight decay");
  flags.add("adam-beta1", engine.zero.adam.beta1, "decay of the first moment");
  flags.add("adam-beta2", engine.zero.adam.beta2, "decay of the second moment");
  flags.add("adam-eps", engine.zero.adam.eps, "term added to Adam's denominator");
  flags.add("clip-grad", engine.zero.clip_grad, "largest global gradient norm; 0: no clipping");
  flags.add("freeze", engine.freeze,
            "do not train parameters whose name matches one of these regular expressions");
}

void add_precision_flags(FlagTable& flags, PrecisionConfig& precision) {
  flags.group("Precision");
  flags.add("bf16", precision.bf16, "bf16 weights with fp32 masters; otherwise all fp32");
  flags.add("fp16", precision.fp16, "fp16 weights with fp32 masters and a scaled loss");
  flags.add("loss-scale", precision.loss_scale, "static scale of the loss; 0: dynamic", "dynamic");
  flags.add("initial-loss-scale", precision.initial_loss_scale, "where the dynamic scale starts");
  flags.add("min-loss-scale", precision.min_loss_scale, "floor of the dynamic scale");
  flags.add("loss-scale-window", precision.loss_scale_window,
            "steps without an overflow that double the scale");
  flags.add("hysteresis", precision.hysteresis, "overflows that halve the scale");
}

void add_data_flags(FlagTable& flags, DataConfig& data) {
  flags.group("Data");
  flags.add(
      "data-path", data.data_path,
      "path of a .bin/.idx pair, without the suffix; or several, each after its weight, to blend");
  flags.add("split", data.split, "proportions of training, validation and test documents");
  flags.add("tokenizer-type", data.tokenizer_type,
            "GPT2BPETokenizer, ByteLevelTokenizer, SentencePieceTokenizer, "
            "GPTSentencePieceTokenizer, Llama2Tokenizer, HFTokenizer (HuggingFaceTokenizer is the "
            "same), TikTokenizer or NullTokenizer",
            "the first with --vocab-file, else the second");
  flags.add("vocab-file", data.vocab_file, "vocab.json of the GPT2BPETokenizer");
  flags.add("merge-file", data.merge_file, "merges.txt of the GPT2BPETokenizer");
  flags.add(
      "tokenizer-model", data.tokenizer_model,
      "the SentencePiece tokenizers' model, the HFTokenizer's tokenizer.json or its folder, or "
      "the TikTokenizer's file");
  flags.add("tiktoken-pattern", data.tiktoken_pattern,
            "v1 or v2, the regular expression that splits text for the TikTokenizer");
  flags.add("tiktoken-num-special-tokens", data.tiktoken_special_tokens,
            "ids of the TikTokenizer before the file's tokens: <unk>, <s>, </s> and so on");
  flags.add("vocab-size", data.vocab_size,
            "of the NullTokenizer or of --mock-data: tokens are below it (Megatron's NullTokenizer "
            "ends documents with N itself: give N + 1); of the TikTokenizer: it leaves out the "
            "file's tokens beyond; of a model whose vocabulary is larger than its tokenizer's",
            "the tokenizer's");
  flags.add("mock-data", data.mock_data, "train on generated tokens; reads no files");
}

void add_save_flags(FlagTable& flags, CheckpointConfig& checkpoint) {
  flags.group("Checkpoint");
  flags.add("save", checkpoint.save, "folder to write checkpoints to");
  flags.add("save-interval", checkpoint.save_interval, "steps between checkpoints",
            "one, at the end");
  flags.add("save-total-limit", checkpoint.save_total_limit,
            "checkpoints to keep; older ones are removed after a save", "all");
  flags.add("save-retain-interval", checkpoint.save_retain_interval,
            "also keep checkpoints whose step it divides; without --save-total-limit, only the "
            "newest else",
            "none");
  flags.add("async-save", checkpoint.async_save,
            "write checkpoints beside the training, from a copy of the state in memory");
  flags.add("report-save", checkpoint.report_save, "print where the time of each save goes");
  flags.add("no-save-optim", checkpoint.no_save_optim,
            "save weights without optimizer state: for --finetune or --no-load-optim");
  flags.add("save-weights-only", checkpoint.save_weights_only, "the same");
  flags.add(
      "save-16bit-model", checkpoint.save_16bit_model,
      "save the whole model in its own precision too, as pytorch_model.bin in each checkpoint");
  flags.add("exclude-frozen-parameters", checkpoint.exclude_frozen_parameters,
            "leave frozen parameters (--freeze) out of checkpoints");
  flags.add("exit-on-save-failure", checkpoint.exit_on_save_failure,
            "stop when a save fails, instead of training on and trying again at the next");
}

void add_load_and_exit_flags(FlagTable& flags, CheckpointConfig& checkpoint) {
  flags.add("load", checkpoint.load, "folder to resume from");
  flags.add("load-tag", checkpoint.load_tag, "the checkpoint in --load to resume from",
            "the newest");
  flags.add(
      "use-checkpoint-args", checkpoint.use_checkpoint_args,
      "the model and the tokenizer of the checkpoint in --load, where no flag says otherwise");
  flags.add("exit-on-missing-checkpoint", checkpoint.exit_on_missing_checkpoint,
            "stop if --load has no checkpoint, even if it is the folder of --save");
  flags.add("no-fallback", checkpoint.no_fallback,
            "stop if the newest checkpoint is damaged, instead of loading the one before it");
  flags.add("verify-checkpoint", checkpoint.verify_checkpoint,
            "compare all files with the checksums of their manifest before anything is loaded");
  flags.add("no-load-strict", checkpoint.no_load_strict,
            "load the parameters that checkpoint and model both have");
  flags.add("allow-other-data", checkpoint.allow_other_data,
            "go on where the checkpoint's data or their order were others: at the same count of "
            "samples, of this run's");
  flags.add("allow-fresh-moments", checkpoint.allow_fresh_moments,
            "go on although parameters that were frozen have no moments yet");
  flags.add("universal-checkpoint", checkpoint.universal_checkpoint,
            "--load names a universal checkpoint, written for any mesh");
  flags.add("finetune", checkpoint.finetune, "load the weights only and start at step 0");
  flags.add("no-load-optim", checkpoint.no_load_optim, "start with a fresh optimizer state");
  flags.add("no-load-rng", checkpoint.no_load_rng, "start with fresh random generators");
  flags.add("no-load-lr-state", checkpoint.no_load_lr_state,
            "start the learning rate schedule afresh");
  flags.add("override-opt_param-scheduler", checkpoint.override_scheduler,
            "this run's learning rate schedule where the checkpoint has another");
  flags.add("use-checkpoint-opt_param-scheduler", checkpoint.use_checkpoint_scheduler,
            "the checkpoint's schedule in place of this run's flags");
  flags.add("verify-resume", checkpoint.verify_resume,
            "validate before each save and after the load, and compare");
  flags.add("exit-interval", checkpoint.exit_interval, "exit after a step that is divisible by it",
            "never");
  flags.add("exit-duration-in-mins", checkpoint.exit_duration_in_mins,
            "save and exit after that many minutes", "never");
  flags.add("kill-switch-file", checkpoint.kill_switch_file, "save and exit once this file exists");
  flags.add("save-switch-file", checkpoint.save_switch_file,
            "save once this file exists, and remove it");
}

void add_run_flags(FlagTable& flags, RunConfig& run, EngineConfig& engine) {
  flags.group("Run");
  flags.add("seed", run.seed, "of weights, dropout and the order of samples");
  flags.add("eval-interval", run.eval_interval, "steps between validations");
  flags.add("eval-iters", run.eval_iters, "steps per validation; 0: no validation");
  flags.add("log-interval", run.log_interval, "steps between lines of output",
            "100, or a tenth of the run if that is less");
  flags.add("loss-csv", run.loss_csv, "file that gets one row per step");
  flags.add("tensorboard-dir", run.tensorboard_dir,
            "folder that gets an event file per run, with scalars of every step");
  flags.add("dry-run", run.dry_run, "print mesh, model and the size of saves, and exit");
  flags.add("report-memory", run.report_memory,
            "print at the end the memory of each part beside its closed form");
  flags.add("report-comm", run.report_comm,
            "print the calls and bytes that a step communicates, per group and verb");
  flags.add("profile-step", run.profile_step,
            "step to profile: print where its time goes, by phase and operator", "none");
  flags.add("trace", run.trace,
            "file that gets that step as a Chrome trace, all ranks in one; needs --profile-step");
  flags.add("local-ranks", run.local_ranks,
            "run this many ranks as threads of this process, on the CPU and without mpirun",
            "none");
  flags.add(
      "distributed-timeout-minutes", run.distributed_timeout_minutes,
      "how long the start, a save, and with NCCL any collective, waits for a rank before it names "
      "it and stops; with MPI a collective names it and waits on");
  flags.add("no-check-for-nan-in-loss-and-grad", engine.check_for_nan,
            "continue after a loss or gradient that is not finite");
  flags.add("deepspeed_config", run.deepspeed_config,
            "DeepSpeed JSON file, which may repeat flags but not contradict them");
}

}  // namespace

void add_flags(FlagTable& flags, Config& config) {
  add_parallel_flags(flags, config.parallel, config.engine);
  add_device_flags(flags, config.device);
  add_offload_flags(flags, config.engine.zero.offload);
  add_batch_flags(flags, config.batch);
  add_optimizer_flags(flags, config.schedule, config.engine);
  add_precision_flags(flags, config.precision);
  add_data_flags(flags, config.data);
  add_save_flags(flags, config.checkpoint);
  add_load_and_exit_flags(flags, config.checkpoint);
  add_run_flags(flags, config.run, config.engine);
}

ParseResult parse(FlagTable& flags, Config& config, const std::vector<std::string>& args,
                  const std::function<void()>& more) {
  ParseResult result{.text = text_asked_for(flags, args)};
  if (!result.text.empty()) return result;

  const std::vector<std::string> ignored_flags = read_command_line(flags, args);
  if (!ignored_flags.empty()) {
    result.notes.push_back("ignored, as they change no result here: " + joined(ignored_flags));
  }
  if (const std::string& path = config.run.deepspeed_config; !path.empty()) {
    const std::vector<std::string> ignored_keys =
        read_deepspeed_json(path, flags, config, &result.notes);
    if (!ignored_keys.empty()) {
      result.notes.push_back("ignored keys of " + path +
                             ", as they change no result here: " + joined(ignored_keys));
    }
    if (!flags.given("clip-grad"))
      result.notes.push_back(
          path + " has no gradient_clipping, so that DeepSpeed would not clip; " +
          "here --clip-grad 1 holds, as in Megatron. --clip-grad 0 does not clip");
  }
  if (more) more();
  apply_flag_rules(flags, config, result.notes);
  result.settings = flags.settings();
  return result;
}

}  // namespace anymesh
