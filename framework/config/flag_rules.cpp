#include "framework/config/flag_rules.h"

#include <algorithm>

#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

void require_choice(const FlagTable& flags, const char* flag, const std::string& value,
                    const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw UserError(flags.origin(flag) + ": expected one of " + joined(choices));
}

void choose_tokenizer(const FlagTable& flags, DataConfig& data) {
  if (!flags.given("tokenizer-type")) {
    data.tokenizer_type = data.mock_data             ? "NullTokenizer"
                          : !data.vocab_file.empty() ? "GPT2BPETokenizer"
                                                     : "ByteLevelTokenizer";
  }
  require_choice(flags, "tokenizer-type", data.tokenizer_type,
                 {"GPT2BPETokenizer", "ByteLevelTokenizer", "SentencePieceTokenizer",
                  "GPTSentencePieceTokenizer", "Llama2Tokenizer", "HFTokenizer",
                  "HuggingFaceTokenizer", "TikTokenizer", "NullTokenizer"});
  require_choice(flags, "tiktoken-pattern", data.tiktoken_pattern, {"v1", "v2"});
}

// Throws UserError if a flag is given but would change nothing, which is a misunderstanding.
void refuse(const FlagTable& flags, const char* flag, bool without_effect,
            const std::string& beside) {
  if (!without_effect || !flags.given(flag)) return;
  throw UserError(flags.origin(flag) + " has no effect " + beside);
}

void refuse_beside(const FlagTable& flags, const char* flag, const char* other) {
  refuse(flags, flag, flags.given(other), "beside " + flags.origin(other) + "; keep one of them");
}

void refuse_without(const FlagTable& flags, const char* flag, const char* other) {
  refuse(flags, flag, !flags.given(other), std::string("without --") + other);
}

void check_device(const FlagTable& flags, DeviceConfig& device, std::vector<std::string>& notes) {
  if (flags.given("device")) require_choice(flags, "device", device.device, {"cpu", "cuda"});
  refuse(flags, "local-ranks", device.device == "cuda",
         "beside --device cuda: each GPU needs a process of its own; start them by mpirun -n N");
  if (!flags.given("distributed-backend")) return;
  std::string& backend = device.distributed_backend;
  require_choice(flags, "distributed-backend", backend, {"mpi", "nccl", "gloo"});
  if (backend != "gloo") return refuse_beside(flags, "distributed-backend", "local-ranks");
  backend = "mpi";
  notes.push_back(flags.origin("distributed-backend") + ": here that is " +
                  (flags.given("local-ranks") ? "memory" : "mpi"));
}

void check_offload(const FlagTable& flags, const OffloadConfig& offload,
                   std::vector<std::string>& notes) {
  for (const auto& [flag, device] : {std::pair("offload-optimizer", offload.optimizer),
                                     std::pair("offload-param", offload.param)}) {
    require_choice(flags, flag, device, {"none", "cpu", "nvme"});
    if (device == "cpu")
      notes.push_back(flags.origin(flag) +
                      ": this build trains in the host's memory, where that "
                      "is already; nothing moves");
  }
  refuse(flags, "nvme-path", !offload.optimizer_on_disk() && !offload.params_on_disk(),
         "without --offload-optimizer nvme or --offload-param nvme");
}

void check_schedule(const FlagTable& flags, const Config& config) {
  const ScheduleConfig& lengths = config.schedule;
  const std::string& style = config.engine.schedule.style;
  require_choice(flags, "lr-decay-style", style,
                 {"constant", "linear", "cosine", "inverse-square-root", "WSD"});
  require_choice(flags, "lr-wsd-decay-style", config.engine.schedule.wsd_decay_style,
                 {"exponential", "linear", "cosine", "minus_sqrt"});
  refuse_beside(flags, "train-iters", "train-samples");
  refuse(flags, "rampup-batch-size", !flags.given("train-samples"),
         "without --train-samples: batches of several sizes make a length in steps ambiguous");
  // Zeros are harmless, and Megatron accepts them.
  const bool by_samples = flags.given("train-samples");
  refuse(flags, "lr-decay-iters", by_samples && lengths.lr_decay_iters != 0,
         "with --train-samples; use --lr-decay-samples");
  refuse(flags, "lr-warmup-iters", by_samples && lengths.lr_warmup_iters != 0,
         "with --train-samples; use --lr-warmup-samples");
  refuse(flags, "lr-decay-samples", !by_samples && lengths.lr_decay_samples != 0,
         "without --train-samples; use --lr-decay-iters");
  refuse(flags, "lr-warmup-samples", !by_samples && lengths.lr_warmup_samples != 0,
         "without --train-samples; use --lr-warmup-iters");
  refuse(flags, "lr-wsd-decay-iters", by_samples && lengths.lr_wsd_decay_iters != 0,
         "with --train-samples; use --lr-wsd-decay-samples");
  refuse(flags, "lr-wsd-decay-samples", !by_samples && lengths.lr_wsd_decay_samples != 0,
         "without --train-samples; use --lr-wsd-decay-iters");
  for (const char* flag : {"lr-wsd-decay-style", "lr-wsd-decay-iters", "lr-wsd-decay-samples"})
    refuse(flags, flag, style != "WSD", "without --lr-decay-style WSD");
  refuse_beside(flags, "lr-warmup-iters", "lr-warmup-fraction");
  refuse_beside(flags, "lr-warmup-samples", "lr-warmup-fraction");
  const bool constant = style == "constant";
  refuse(flags, "min-lr", constant, "with --lr-decay-style constant");
  const bool without_decay = constant && !lengths.lr_warmup_fraction;
  refuse(flags, "lr-decay-iters", without_decay, "with --lr-decay-style constant");
  refuse(flags, "lr-decay-samples", without_decay, "with --lr-decay-style constant");
}

void check_precision(const FlagTable& flags, const PrecisionConfig& precision) {
  // A DeepSpeed config may give both flags, each on or off, so their values are compared.
  refuse(flags, "fp16", precision.fp16 && precision.bf16,
         "beside " + flags.origin("bf16") + "; keep one of them");
  refuse(flags, "loss-scale", !precision.fp16, "without --fp16");
  for (const char* flag :
       {"initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"}) {
    refuse(flags, flag, !precision.fp16, "without --fp16");
    refuse(flags, flag, precision.loss_scale.value_or(0) != 0, "with a static --loss-scale");
  }
}

void check_data(const FlagTable& flags, const DataConfig& data) {
  const bool mock = data.mock_data;
  for (const char* flag : {"data-path", "split", "vocab-file", "merge-file", "tokenizer-model"}) {
    refuse(flags, flag, mock, "with --mock-data, which reads no files");
  }
  refuse(flags, "tokenizer-type", mock && data.tokenizer_type != "NullTokenizer",
         "with --mock-data, whose tokens are numbers below --vocab-size");
  const std::string with_tokenizer = "with the " + data.tokenizer_type;
  for (const char* flag : {"vocab-file", "merge-file"}) {
    refuse(flags, flag, data.tokenizer_type != "GPT2BPETokenizer", with_tokenizer);
  }
  refuse(flags, "tokenizer-model", !takes_tokenizer_model(data.tokenizer_type),
         with_tokenizer + "; it is for HFTokenizer, TikTokenizer, Llama2Tokenizer, " +
             "SentencePieceTokenizer and GPTSentencePieceTokenizer");
  const bool tiktoken = data.tokenizer_type == "TikTokenizer";
  for (const char* flag : {"tiktoken-pattern", "tiktoken-num-special-tokens"})
    refuse(flags, flag, !tiktoken, with_tokenizer);
}

void check_checkpoint(const FlagTable& flags, const CheckpointConfig& checkpoint) {
  for (const char* flag :
       {"save-interval", "save-total-limit", "save-retain-interval", "save-switch-file",
        "async-save", "report-save", "no-save-optim", "save-weights-only",
        "exclude-frozen-parameters", "exit-on-save-failure"})
    refuse_without(flags, flag, "save");
  refuse(flags, "save-16bit-model", checkpoint.save_16bit_model && checkpoint.save.empty(),
         "without --save");
  refuse_without(flags, "exclude-frozen-parameters", "freeze");
  refuse(flags, "universal-checkpoint", checkpoint.universal_checkpoint && checkpoint.load.empty(),
         "without --load");
  for (const char* flag :
       {"load-tag", "use-checkpoint-args", "exit-on-missing-checkpoint", "no-fallback",
        "verify-checkpoint", "no-load-strict", "allow-other-data", "allow-fresh-moments",
        "finetune", "no-load-optim", "no-load-rng", "no-load-lr-state",
        "override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler"}) {
    refuse_without(flags, flag, "load");
  }
  refuse(flags, "no-fallback", checkpoint.no_fallback && !checkpoint.load_tag.empty(),
         "with --load-tag, which never falls back");
  refuse_beside(flags, "override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler");
  for (const char* flag : {"override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler"}) {
    refuse(flags, flag, checkpoint.finetune, "with --finetune, which starts the schedule afresh");
    refuse(flags, flag, checkpoint.no_load_lr_state,
           "with --no-load-lr-state, which starts the schedule afresh");
  }
}

}  // namespace

void apply_flag_rules(const FlagTable& flags, Config& config, std::vector<std::string>& notes) {
  choose_tokenizer(flags, config.data);
  check_device(flags, config.device, notes);
  check_offload(flags, config.engine.zero.offload, notes);
  check_schedule(flags, config);
  check_precision(flags, config.precision);
  check_data(flags, config.data);
  check_checkpoint(flags, config.checkpoint);
  if (config.run.local_ranks > kMostLocalRanks)
    throw UserError(flags.origin("local-ranks") + ": expected at most " +
                    std::to_string(kMostLocalRanks) + " threads of one process; start more by " +
                    "mpirun");
  config.run.eval_given = flags.given("eval-iters") || flags.given("eval-interval");
  refuse(flags, "trace", config.run.profile_step == 0, "without --profile-step");
}

}  // namespace anymesh
