// The framework's flags, a row each.
#include "framework/config/parse.h"

namespace anymesh {
namespace {

const FlagRule kSaves{.needs = {"--save"}}, kLoads{.needs = {"--load"}};
constexpr const char* kNoFiles = "--mock-data, which reads no files";
constexpr const char* kNoDecay = "--lr-decay-style constant without --lr-warmup-fraction";
constexpr const char* kStatic = "--loss-scale above 0, which is static";
constexpr const char* kAfresh = "--finetune or --no-load-lr-state, which start the schedule afresh";

void add_parallel_flags(FlagTable& flags, ParallelConfig& parallel, EngineConfig& engine) {
  flags.group("Parallelism");
  flags.add("tensor-model-parallel-size", parallel.tp, "ranks that share each layer", {.least = 1});
  flags.add("sequence-parallel", parallel.sequence_parallel,
            "cut the sequence over those ranks where they would repeat each other's work");
  flags.add("same-bits", parallel.same_bits,
            "add gradients exactly, and everything that tensor parallelism cuts in so many blocks "
            "(1, 2, 4 or 8; 4 without a number): a run then has the same bits on every mesh whose "
            "tensor-parallel size divides them",
            {.shown = "off", .implied = "4", .least = 0, .most = 8});
  flags.add("pipeline-model-parallel-size", parallel.pp,
            "stages of consecutive layers; data parallelism takes the remaining factor of the "
            "world size",
            {.least = 1});
  flags.add("num-layers-per-virtual-pipeline-stage", parallel.layers_per_chunk,
            "cut a stage's layers into chunks of so many, which lie apart in the model: micro-"
            "batches come through a stage once for each chunk, and stages wait that much less",
            {.shown = "one chunk", .least = 0});
  flags.add("pipeline-schedule", engine.pipeline_schedule,
            "order of the stages' work: 1f1b, or zb-h1, which makes the gradients of weights where "
            "a stage would wait, and holds more activations",
            {.choices = {"1f1b", "zb-h1"}});
  flags.add("expert-model-parallel-size", parallel.ep,
            "ranks that share a layer's experts, out of the data-parallel ones; tokens travel to "
            "the experts that they choose",
            {.least = 1});
  flags.alias("moe-expert-parallel-size", "expert-model-parallel-size");
  flags.add("expert-tensor-parallel-size", parallel.etp,
            "tensor-parallel ranks that cut each expert: all, or with 1 none, and experts are "
            "spread over them too",
            {.shown = "--tensor-model-parallel-size", .least = 0});
  flags.add("zero-stage", engine.zero.stage,
            "data-parallel ranks partition: 0 nothing, 1 the optimizer state, 2 also the "
            "gradients, 3 also the parameters",
            {.least = 0, .most = 3});
  flags.add("activation-checkpointing", engine.activation_checkpointing,
            "keep only the input of each layer, and repeat its forward pass in the backward pass");
}

void add_device_flags(FlagTable& flags, DeviceConfig& device) {
  flags.add("device", device.device, "device of the ranks: cpu, or cuda with one GPU per rank",
            {.shown = "cuda if every machine has a GPU, else cpu", .choices = {"cpu", "cuda"}});
  flags.add(
      "distributed-backend", device.distributed_backend,
      "transport between ranks on GPUs: nccl, or mpi through host memory (ranks may share a GPU); "
      "always mpi on CPUs",
      {.shown = "nccl on cuda, mpi on cpu", .choices = {"mpi", "nccl", "gloo"}});
  flags.add("deterministic-mode", device.deterministic_mode,
            "on GPUs, only kernels that add in a fixed order, so that a run repeats bit for bit; "
            "attention then keeps its weights in memory. CPUs always do");
}

void add_offload_flags(FlagTable& flags, OffloadConfig& offload) {
  flags.add("offload-optimizer", offload.optimizer,
            "place of the optimizer state: none (where it is used), cpu or nvme (streamed from "
            "and to a file at each step); needs --zero-stage 1 or more",
            {.choices = {"none", "cpu", "nvme"}});
  flags.add("offload-param", offload.param,
            "place of the parameters' partition, which is read when a layer runs; needs "
            "--zero-stage 3",
            {.choices = {"none", "cpu", "nvme"}});
  flags.add(
      "nvme-path", offload.nvme_path,
      "folder for the files of nvme, best on a local disk; they vanish with the run. Only this "
      "flag may differ between ranks",
      {.needs = {"--offload-optimizer nvme or --offload-param nvme"}});
}

void add_batch_flags(FlagTable& flags, BatchConfig& batch) {
  flags.group("Batch and length");
  flags.add("micro-batch-size", batch.micro_batch_size, "samples per forward pass", {.least = 1});
  flags.add("global-batch-size", batch.global_batch_size, "samples per step",
            {.shown = "micro-batch size x data-parallel size", .least = 0});
  flags.add(
      "rampup-batch-size", batch.rampup_batch_size,
      "START INCREMENT SAMPLES: grow the batch from START to --global-batch-size over so many "
      "samples; needs --train-samples",
      {.shown = "none",
       .needs = {"--train-samples: batches of several sizes make a length in steps ambiguous"}});
  flags.add("train-iters", batch.train_iters, "steps to train; this or --train-samples",
            {.shown = "none", .least = 0, .excludes = {"--train-samples"}});
  flags.add("train-samples", batch.train_samples,
            "samples to train, rounded down to whole steps; this or --train-iters",
            {.shown = "none", .least = 0});
}

void add_optimizers(FlagTable& flags, OptimizerConfig& optimizer) {
  const FlagRule decay{.least = 0, .below = 1};
  const auto of = [](FlagRule rule, const char* condition) {
    rule.needs = {condition};
    return rule;
  };
  constexpr const char *kAdam = "--optimizer adam or muon", *kSgd = "--optimizer sgd",
                       *kLion = "--optimizer lion", *kMuon = "--optimizer muon";
  std::vector<std::string> names{"adam", "sgd", "lion", "muon"};
  if (optimizer.own) names.push_back(optimizer.name);
  flags.add("optimizer", optimizer.name,
            "adam is AdamW; muon makes the updates of matrices orthogonal, and leaves the rest to "
            "adam",
            {.choices = std::move(names)});
  flags.add("adam-beta1", optimizer.adam.beta1, "decay of the first moment", of(decay, kAdam));
  flags.add("adam-beta2", optimizer.adam.beta2, "decay of the second moment", of(decay, kAdam));
  flags.add("adam-eps", optimizer.adam.eps, "term added to Adam's denominator",
            of({.above = 0}, kAdam));
  flags.add("sgd-momentum", optimizer.sgd.momentum, "decay of SGD's momentum; 0: no state",
            of(decay, kSgd));
  flags.add("lion-beta1", optimizer.lion.beta1, "weight of Lion's momentum in its update",
            of(decay, kLion));
  flags.add("lion-beta2", optimizer.lion.beta2, "decay of Lion's momentum", of(decay, kLion));
  flags.add("muon-momentum", optimizer.muon.momentum, "decay of Muon's momentum", of(decay, kMuon));
  flags.add("muon-no-nesterov", optimizer.muon.nesterov, "use the momentum as it is",
            of({.dest = "muon_use_nesterov"}, kMuon));
  flags.add("muon-lr-scale", optimizer.muon.lr_scale,
            "learning rate of matrices over that of the rest", of({.above = 0}, kMuon));
  flags.add("muon-scale-mode", optimizer.muon.scale_mode,
            "scale of an update [m, n]: sqrt(max(1, m / n)), sqrt(max(m, n)) or sqrt(m / n)",
            of({.choices = {"shape_scaling", "spectral", "unit_rms_norm"}}, kMuon));
  flags.add("muon-num-ns-steps", optimizer.muon.newton_schulz_steps, "Newton-Schulz iterations",
            of({.least = 1, .most = 99}, kMuon));
  flags.add("muon-fp32", optimizer.muon.fp32, "iterate in fp32 in place of bf16", of({}, kMuon));
}

void add_schedule_flags(FlagTable& flags, ScheduleConfig& lengths, EngineConfig& engine) {
  flags.add("min-lr", engine.schedule.min_lr, "floor of the decay",
            {.least = 0, .excludes = {"--lr-decay-style constant"}});
  flags.add("lr-decay-style", engine.schedule.style,
            "how the rate falls; WSD is flat until the last steps",
            {.choices = {std::begin(kLrDecayStyles), std::end(kLrDecayStyles)}});
  flags.add("lr-decay-iters", lengths.lr_decay_iters,
            "steps after which the rate stays at the floor",
            {.shown = "--train-iters",
             .least = 0,
             .excludes = {"--train-samples; use --lr-decay-samples", kNoDecay}});
  flags.add("lr-decay-samples", lengths.lr_decay_samples, "the same in samples",
            {.shown = "--train-samples",
             .least = 0,
             .needs = {"--train-samples; use --lr-decay-iters"},
             .excludes = {kNoDecay}});
  flags.add("lr-warmup-iters", lengths.lr_warmup_iters, "steps of linear warmup",
            {.least = 0,
             .excludes = {"--train-samples; use --lr-warmup-samples", "--lr-warmup-fraction"}});
  flags.add("lr-warmup-samples", lengths.lr_warmup_samples, "samples of linear warmup",
            {.least = 0,
             .needs = {"--train-samples; use --lr-warmup-iters"},
             .excludes = {"--lr-warmup-fraction"}});
  flags.add("lr-warmup-fraction", lengths.lr_warmup_fraction,
            "warmup as a fraction of the decay length", {.least = 0, .below = 1});
  flags.add("lr-wsd-decay-style", engine.schedule.wsd_decay_style, "how WSD falls",
            {.choices = {"exponential", "linear", "cosine", "minus_sqrt"},
             .needs = {"--lr-decay-style WSD"}});
  flags.add("lr-wsd-decay-iters", lengths.lr_wsd_decay_iters,
            "steps that WSD falls for, the last of --lr-decay-iters",
            {.shown = "required by WSD",
             .least = 0,
             .needs = {"--lr-decay-style WSD"},
             .excludes = {"--train-samples; use --lr-wsd-decay-samples"}});
  flags.add("lr-wsd-decay-samples", lengths.lr_wsd_decay_samples, "the same in samples",
            {.shown = "required by WSD with --train-samples",
             .least = 0,
             .needs = {"--lr-decay-style WSD", "--train-samples; use --lr-wsd-decay-iters"}});
}

void add_optimizer_flags(FlagTable& flags, EngineConfig& engine) {
  add_optimizers(flags, engine.zero.optimizer);
  flags.add("weight-decay", engine.zero.weight_decay,
            "decoupled weight decay; with sgd, a part of the gradient", {.least = 0});
  flags.add("clip-grad", engine.zero.clip_grad, "largest global gradient norm; 0: no clipping",
            {.least = 0});
  flags.add("grad-reduce-in-bf16", engine.zero.grad_reduce_in_bf16,
            "send gradients in bf16 where they are summed over data-parallel ranks, not in fp32. "
            "CPUs then round each rank's once and add in fp32, as they always do at --zero-stage 2 "
            "and 3; NCCL rounds at each addition",
            {.needs = {"--bf16", "--zero-stage above 0"},
             .excludes = {"--same-bits, which sends exact sums"}});
  flags.add("overlap-param-gather", engine.zero.overlap_param_gather,
            "gather new parameters beside the next forward, unit by unit, and not before it",
            {.needs = {"--zero-stage above 0"},
             .excludes = {"--zero-stage 3, which gathers parameters where they are used"}});
  flags.add("freeze", engine.freeze,
            "do not train parameters whose name matches one of these regular expressions");
}

void add_precision_flags(FlagTable& flags, PrecisionConfig& precision) {
  flags.group("Precision");
  flags.add("bf16", precision.bf16, "bf16 weights with fp32 masters; otherwise all fp32");
  flags.add("fp16", precision.fp16, "fp16 weights with fp32 masters and a scaled loss",
            {.excludes = {"--bf16"}});
  flags.add("loss-scale", precision.loss_scale, "static scale of the loss; 0: dynamic",
            {.shown = "dynamic", .least = 0, .needs = {"--fp16"}});
  flags.add("initial-loss-scale", precision.initial_loss_scale, "where the dynamic scale starts",
            {.needs = {"--fp16"}, .excludes = {kStatic}});
  flags.add("min-loss-scale", precision.min_loss_scale, "floor of the dynamic scale",
            {.above = 0, .needs = {"--fp16"}, .excludes = {kStatic}});
  flags.add("loss-scale-window", precision.loss_scale_window,
            "steps without an overflow that double the scale",
            {.least = 1, .needs = {"--fp16"}, .excludes = {kStatic}});
  flags.add("hysteresis", precision.hysteresis, "overflows that halve the scale",
            {.least = 1, .needs = {"--fp16"}, .excludes = {kStatic}});
}

void add_data_flags(FlagTable& flags, DataConfig& data) {
  flags.group("Data");
  flags.add(
      "data-path", data.data_path,
      "path of a .bin/.idx pair, without the suffix; or several, each after its weight, to blend",
      {.excludes = {kNoFiles}});
  flags.add("split", data.split, "proportions of training, validation and test documents",
            {.excludes = {kNoFiles}});
  flags.add("tokenizer-type", data.tokenizer_type,
            "how text becomes tokens; HuggingFaceTokenizer is the HFTokenizer",
            {.shown = "GPT2BPETokenizer with --vocab-file, else ByteLevelTokenizer",
             .choices = {"GPT2BPETokenizer", "ByteLevelTokenizer", "SentencePieceTokenizer",
                         "GPTSentencePieceTokenizer", "Llama2Tokenizer", "HFTokenizer",
                         "HuggingFaceTokenizer", "TikTokenizer", "NullTokenizer"}});
  flags.add("vocab-file", data.vocab_file, "vocab.json of the GPT2BPETokenizer",
            {.needs = {"--tokenizer-type GPT2BPETokenizer"}});
  flags.add("merge-file", data.merge_file, "merges.txt of the GPT2BPETokenizer",
            {.needs = {"--tokenizer-type GPT2BPETokenizer"}});
  flags.add(
      "tokenizer-model", data.tokenizer_model,
      "the SentencePiece tokenizers' model, the HFTokenizer's tokenizer.json or its folder, or "
      "the TikTokenizer's file",
      {.needs = {"--tokenizer-type HFTokenizer or HuggingFaceTokenizer or TikTokenizer or "
                 "Llama2Tokenizer or SentencePieceTokenizer or GPTSentencePieceTokenizer"}});
  flags.add("tiktoken-pattern", data.tiktoken_pattern,
            "the regular expression that splits text for the TikTokenizer",
            {.choices = {"v1", "v2"}, .needs = {"--tokenizer-type TikTokenizer"}});
  flags.add("tiktoken-num-special-tokens", data.tiktoken_special_tokens,
            "ids of the TikTokenizer before the file's tokens: <unk>, <s>, </s> and so on",
            {.needs = {"--tokenizer-type TikTokenizer"}});
  flags.add("vocab-size", data.vocab_size,
            "of the NullTokenizer or of --mock-data: tokens are below it (Megatron's NullTokenizer "
            "ends documents with N itself: give N + 1); of the TikTokenizer: it leaves out the "
            "file's tokens beyond; of a model whose vocabulary is larger than its tokenizer's",
            "the tokenizer's");
  flags.add("mock-data", data.mock_data, "train on generated tokens; reads no files",
            {.needs = {"--tokenizer-type NullTokenizer: tokens are numbers below --vocab-size"}});
}

void add_save_flags(FlagTable& flags, CheckpointConfig& checkpoint) {
  flags.group("Checkpoint");
  flags.add("save", checkpoint.save, "folder to write checkpoints to");
  flags.add("save-interval", checkpoint.save_interval, "steps between checkpoints",
            {.shown = "one, at the end", .least = 0, .needs = {"--save"}});
  flags.add("save-total-limit", checkpoint.save_total_limit,
            "checkpoints to keep; older ones are removed after a save",
            {.shown = "all", .least = 0, .needs = {"--save"}});
  flags.add("save-retain-interval", checkpoint.save_retain_interval,
            "also keep checkpoints whose step it divides; without --save-total-limit, only the "
            "newest else",
            {.shown = "none", .least = 0, .needs = {"--save"}});
  flags.add("async-save", checkpoint.async_save,
            "write checkpoints beside the training, from a copy of the state in memory",
            {.needs = {"--save"},
             .excludes = {"--no-save-optim or --save-weights-only or --save-16bit-model, which "
                          "gather weights from all ranks while they write",
                          "--offload-optimizer nvme or --offload-param nvme, whose state it would "
                          "copy to memory"}});
  flags.add("report-save", checkpoint.report_save, "print where the time of each save goes",
            kSaves);
  flags.add("no-save-optim", checkpoint.no_save_optim,
            "save weights without optimizer state: for --finetune or --no-load-optim", kSaves);
  flags.add("save-weights-only", checkpoint.save_weights_only, "the same", kSaves);
  flags.add(
      "save-16bit-model", checkpoint.save_16bit_model,
      "save the whole model in its own precision too, as pytorch_model.bin in each checkpoint",
      kSaves);
  flags.add("exclude-frozen-parameters", checkpoint.exclude_frozen_parameters,
            "leave frozen parameters (--freeze, --lora-rank) out of checkpoints", kSaves);
  flags.add("exit-on-save-failure", checkpoint.exit_on_save_failure,
            "stop when a save fails, instead of training on and trying again at the next", kSaves);
}

void add_load_and_exit_flags(FlagTable& flags, CheckpointConfig& checkpoint) {
  flags.add("load", checkpoint.load, "folder to resume from");
  flags.add("pretrained-checkpoint", checkpoint.pretrained_checkpoint,
            "folder of the weights to begin with, of any mesh, ordinary or universal; --load, if "
            "it has a checkpoint, is loaded over them");
  flags.add("load-tag", checkpoint.load_tag, "the checkpoint in --load to resume from",
            {.shown = "the newest", .needs = {"--load"}});
  flags.add("use-checkpoint-args", checkpoint.use_checkpoint_args,
            "the model and the tokenizer of the checkpoint in --load, or else in "
            "--pretrained-checkpoint, where no flag says otherwise",
            {.needs = {"--load or --pretrained-checkpoint"}});
  flags.add("exit-on-missing-checkpoint", checkpoint.exit_on_missing_checkpoint,
            "stop if --load has no checkpoint, even if it is the folder of --save", kLoads);
  flags.add("no-fallback", checkpoint.no_fallback,
            "stop if the newest checkpoint is damaged, instead of loading the one before it",
            {.needs = {"--load or --pretrained-checkpoint"},
             .excludes = {"--load-tag, which never falls back"}});
  flags.add("verify-checkpoint", checkpoint.verify_checkpoint,
            "compare all files with the checksums of their manifest before anything is loaded",
            {.needs = {"--load or --pretrained-checkpoint"}});
  flags.add("no-load-strict", checkpoint.no_load_strict,
            "load the parameters that checkpoint and model both have", kLoads);
  flags.add("allow-other-data", checkpoint.allow_other_data,
            "go on where the checkpoint's data or their order were others: at the same count of "
            "samples, of this run's",
            kLoads);
  flags.add("override-same-bits", checkpoint.override_same_bits,
            "go on with this run's --same-bits where the checkpoint's differs", kLoads);
  flags.add("allow-fresh-moments", checkpoint.allow_fresh_moments,
            "go on although parameters that were frozen have no moments yet", kLoads);
  flags.add("universal-checkpoint", checkpoint.universal_checkpoint,
            "--load names a universal checkpoint, written for any mesh", kLoads);
  flags.add("finetune", checkpoint.finetune, "load the weights only and start at step 0", kLoads);
  flags.add("no-load-optim", checkpoint.no_load_optim, "start with a fresh optimizer state",
            kLoads);
  flags.add("no-load-rng", checkpoint.no_load_rng, "start with fresh random generators", kLoads);
  flags.add("no-load-lr-state", checkpoint.no_load_lr_state,
            "start the learning rate schedule afresh", kLoads);
  flags.add("override-opt_param-scheduler", checkpoint.override_scheduler,
            "this run's learning rate schedule where the checkpoint has another",
            {.needs = {"--load"}, .excludes = {"--use-checkpoint-opt_param-scheduler", kAfresh}});
  flags.add("use-checkpoint-opt_param-scheduler", checkpoint.use_checkpoint_scheduler,
            "the checkpoint's schedule in place of this run's flags",
            {.needs = {"--load"}, .excludes = {kAfresh}});
  flags.add("verify-resume", checkpoint.verify_resume,
            "validate before each save and after the load, and compare",
            {.needs = {"--save or --load"},
             .excludes = {"--eval-iters 0, since it compares validation losses"}});
  flags.add("exit-interval", checkpoint.exit_interval, "exit after a step that is divisible by it",
            {.shown = "never", .least = 0});
  flags.add("exit-duration-in-mins", checkpoint.exit_duration_in_mins,
            "save and exit after that many minutes", {.shown = "never", .least = 0});
  flags.add("kill-switch-file", checkpoint.kill_switch_file, "save and exit once this file exists");
  flags.add("save-switch-file", checkpoint.save_switch_file,
            "save once this file exists, and remove it", kSaves);
}

void add_run_flags(FlagTable& flags, RunConfig& run, EngineConfig& engine) {
  flags.group("Run");
  flags.add("seed", run.seed, "of weights, dropout and the order of samples", {.most = UINT32_MAX});
  flags.add("eval-interval", run.eval_interval, "steps between validations", {.least = 1});
  flags.add("eval-iters", run.eval_iters, "steps per validation; 0: no validation", {.least = 0});
  flags.add("log-interval", run.log_interval, "steps between lines of output",
            {.shown = "100, or a tenth of the run if that is less", .least = 1});
  flags.add("loss-csv", run.loss_csv, "file that gets one row per step");
  flags.add("tensorboard-dir", run.tensorboard_dir,
            "folder that gets an event file per run, with scalars of every step");
  flags.add("dry-run", run.dry_run, "print mesh, model and the size of saves, and exit");
  flags.add("report-memory", run.report_memory,
            "print at the end the memory of each part beside its closed form");
  flags.add("report-comm", run.report_comm,
            "print the calls and bytes that a step communicates, per group and verb");
  flags.add("profile-step", run.profile_step,
            "step to profile: print where its time goes, by phase and operator",
            {.shown = "none", .least = 0});
  flags.add("trace", run.trace, "file that gets that step as a Chrome trace, all ranks in one",
            {.needs = {"--profile-step"}});
  flags.add(
      "local-ranks", run.local_ranks,
      "run this many ranks as threads of this process, on the CPU and without mpirun",
      {.shown = "none",
       .least = 0,
       .excludes = {"--device cuda: each GPU needs a process of its own; start them by mpirun -n N",
                    "--distributed-backend mpi or nccl: its ranks are threads"}});
  const std::vector<std::string> of_lone = {"--save: the numbers of a rank alone mean nothing",
                                            "--load", "--pretrained-checkpoint",
                                            "--local-ranks: the other ranks do not exist"};
  flags.add("pretend-ranks", run.pretend_ranks,
            "run one rank of so many alone, at its true shapes, for its memory, traffic and "
            "operators (--report-memory, --report-comm, --profile-step); losses mean nothing",
            {.shown = "none", .least = 0, .most = kMostPretendRanks, .excludes = of_lone});
  flags.add("pretend-rank", run.pretend_rank, "which one",
            {.least = 0, .needs = {"--pretend-ranks"}});
  flags.add(
      "distributed-timeout-minutes", run.distributed_timeout_minutes,
      "how long the start, a save, and with NCCL any collective, waits for a rank before it names "
      "it and stops; with MPI a collective names it, and stops after six times as long",
      {.most = kMostTimeoutMinutes, .above = 0});
  flags.add("no-check-for-nan-in-loss-and-grad", engine.check_for_nan,
            "continue after a loss or gradient that is not finite");
  flags.add("deepspeed_config", run.deepspeed_config,
            "DeepSpeed JSON file, which may repeat flags but not contradict them");
}

}  // namespace

void add_flags(FlagTable& flags, Config& config, const OwnParts& own) {
  add_parallel_flags(flags, config.parallel, config.engine);
  add_device_flags(flags, config.device);
  add_offload_flags(flags, config.engine.zero.offload);
  add_batch_flags(flags, config.batch);
  flags.group("Optimizer and learning rate");
  flags.add("lr", config.engine.schedule.max_lr, "peak learning rate",
            {.shown = "required", .above = 0});
  const size_t first_of_schedule = flags.flags().size();
  add_schedule_flags(flags, config.schedule, config.engine);
  if (own.schedule)
    flags.withdraw(first_of_schedule,
                   "this program brings a learning-rate schedule of its own, a factor of --lr; "
                   "leave the flag out");
  add_optimizer_flags(flags, config.engine);
  add_precision_flags(flags, config.precision);
  const size_t first_of_data = flags.flags().size();
  add_data_flags(flags, config.data);
  if (own.data)
    flags.withdraw(first_of_data, "this program brings data of its own; leave the flag out");
  config.data.own = own.data;
  add_save_flags(flags, config.checkpoint);
  add_load_and_exit_flags(flags, config.checkpoint);
  add_run_flags(flags, config.run, config.engine);
}

}  // namespace anymesh
