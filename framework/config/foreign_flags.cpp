#include "framework/config/foreign_flags.h"

#include <algorithm>

#include "framework/config/config.h"

namespace anymesh {
namespace {

constexpr bool kValue = true;
constexpr bool kSwitch = false;

constexpr std::string_view kRecompute =
    "use --activation-checkpointing, which keeps only the input of each layer";
constexpr std::string_view kWholeInputs =
    "--activation-checkpointing keeps the input of each layer whole, and where it was computed";
constexpr std::string_view kNoTokens = "counts in tokens are not read; use --train-samples";

constexpr Foreign kForeignFlags[] = {
    // Communication and kernels: the same numbers by other means.
    {"deepspeed"},
    {"local-rank", kValue},
    {"local_rank", kValue},
    {"lazy-mpu-init", kValue},
    {"DDP-impl", kValue},
    {"no-contiguous-buffers-in-local-ddp"},
    {"no-scatter-gather-tensors-in-pipeline"},
    {"overlap-p2p-communication"},
    {"use-ring-exchange-p2p"},
    {"no-async-tensor-model-parallel-allreduce"},
    {"no-gradient-accumulation-fusion"},
    {"no-masked-softmax-fusion"},
    {"exit-signal-handler"},  // always on
    {"no-bias-dropout-fusion"},
    {"no-persist-layer-norm"},
    {"disable-mem-efficient-ln"},
    {"use-flash-attn"},
    {"use-flash-attn-v1"},
    {"use-flash-attn-v2"},
    {"use-flash-attn-triton"},
    {"use-flash-attn-builder"},
    {"ds_fused_adam"},
    {"cpu_torch_adam"},
    {"use-cpu-initialization"},
    {"empty-unused-memory-level", kValue},
    {"zero-reduce-scatter"},
    {"zero-contigious-gradients"},
    {"zero-reduce-bucket-size", kValue},
    {"zero-allgather-bucket-size", kValue},
    {"use-pin-memory"},
    // Numerics that are always so here, or cancel out: the layer number of the query-key scaling
    // is divided out again before the softmax.
    {"no-query-key-layer-scaling"},
    {"attention-softmax-in-fp32"},
    {"accumulate-allreduce-grads-in-fp32"},
    // Reading data, and logs: every scalar is written at every step.
    {"num-workers", kValue},
    {"mmap-warmup"},
    {"data-cache-path", kValue},
    {"timing-log-level", kValue},
    {"timing-log-option", kValue},
    {"no-barrier-with-level-1-timing"},
    {"tensorboard-log-interval", kValue},
    {"tensorboard-queue-size", kValue},
    {"log-timers-to-tensorboard"},
    {"log-batch-size-to-tensorboard"},
    {"no-log-learnig-rate-to-tensorboard"},  // spelled so in Megatron
    {"no-log-loss-scale-to-tensorboard"},
    {"log-validation-ppl-to-tensorboard"},
    {"log-optimizer-states-to-tensorboard"},
    {"log-memory-to-tensorboard"},
    {"log-world-size-to-tensorboard"},
    {"log-params-norm"},
    {"log-num-zeros-in-grad"},
    {"wandb-project", kValue},
    {"wandb-exp-name", kValue},
    {"wandb-save-dir", kValue},

    // One value is what this trainer does.
    {"data-impl", kValue, "only Megatron's .bin/.idx files are read", "mmap|infer"},
    {"optimizer", kValue, "the optimizer is AdamW", "adam"},
    {"dataloader-type", kValue, "samples are read in the order of the shuffled index", "single"},
    {"transformer-impl", kValue, "Transformer Engine is not used", "local"},
    {"weight-decay-incr-style", kValue, "the weight decay is constant", "constant"},
    {"ds-sequence-parallel-size", kValue, "attention over a cut sequence is not in this version",
     "1"},
    {"num-experts", kValue, "mixtures of experts are not in this version", "1"},
    {"mlp-type", kValue, "mixtures of experts are not in this version", "standard"},
    {"remote-device", kValue, "use --offload-param", "none"},

    // The model.
    {"squared-relu", kSwitch, "the MLP has GELU, or SiLU with --swiglu"},
    {"glu-activation", kValue, "use --swiglu"},
    {"apply-layernorm-1p", kSwitch, "norms are scaled by their weight, not by 1 + weight"},
    {"apply-residual-connection-post-layernorm", kSwitch, "residuals are taken before the norm"},
    {"kv-channels", kValue, "a head is always --hidden-size / --num-attention-heads wide"},
    {"openai-gelu", kSwitch, "the tanh GELU is the default; leave out --no-bias-gelu-fusion too"},
    {"init-method-xavier-uniform", kSwitch, "weights are drawn as --init-method-std says"},
    {"encoder-num-layers", kValue, "use --num-layers"},
    {"encoder-seq-length", kValue, "use --seq-length"},

    // Precision and parallelism.
    {"fp32-residual-connection", kSwitch, "not in this version"},
    {"num-layers-per-virtual-pipeline-stage", kValue, "the schedule is plain 1F1B"},
    {"model-parallel-size", kValue, "use --tensor-model-parallel-size"},
    {"use-distributed-optimizer", kSwitch, "use --zero-stage 1"},
    {"cpu-optimizer", kSwitch, "use --offload-optimizer cpu"},
    {"data-parallel-random-init", kSwitch, "data-parallel ranks always start equal"},
    {"checkpoint-activations", kSwitch, kRecompute},
    {"checkpoint-num-layers", kValue, kRecompute},
    {"distribute-checkpointed-activations", kSwitch, kWholeInputs},
    {"deepspeed-activation-checkpointing", kSwitch, kRecompute},
    {"partition-activations", kSwitch, kWholeInputs},
    {"contigious-checkpointing", kSwitch, kWholeInputs},
    {"checkpoint-in-cpu", kSwitch, kWholeInputs},
    {"recompute-activations", kSwitch, kRecompute},
    {"recompute-granularity", kValue, kRecompute},
    {"recompute-method", kValue, kRecompute},
    {"recompute-num-layers", kValue, kRecompute},

    // Batches, schedule, data, checkpoints.
    {"batch-size", kValue, "use --micro-batch-size"},
    {"rampup-batch-size", kValue, "the batch size is constant; use --global-batch-size"},
    {"train-tokens", kValue, kNoTokens},
    {"lr-decay-tokens", kValue, kNoTokens},
    {"lr-warmup-tokens", kValue, kNoTokens},
    {"warmup", kValue, "use --lr-warmup-fraction"},
    {"start-weight-decay", kValue, "the weight decay is constant; use --weight-decay"},
    {"end-weight-decay", kValue, "the weight decay is constant; use --weight-decay"},
    {"train-data-path", kValue, "use --data-path with --split"},
    {"valid-data-path", kValue, "use --data-path with --split"},
    {"test-data-path", kValue, "use --data-path with --split"},
    {"reset-position-ids", kSwitch, "documents are not separated within a sample"},
    {"reset-attention-mask", kSwitch, "documents are not separated within a sample"},
    {"eod-mask-loss", kSwitch, "the loss counts every token"},
    {"no-save-rng", kSwitch, "checkpoints are always complete"},
    {"use-checkpoint-args", kSwitch, "the model is what the flags say"},
    {"skip-train", kSwitch, "not in this version"},
};

}  // namespace

std::span<const Foreign> foreign_flags() { return kForeignFlags; }

const Foreign* find_foreign(std::span<const Foreign> list, std::string_view name) {
  const auto found = std::ranges::find(list, name, &Foreign::name);
  return found == list.end() ? nullptr : &*found;
}

bool is_one_of(std::string_view value, std::string_view list) {
  while (!list.empty()) {
    const std::string_view choice = list.substr(0, list.find('|'));
    if (choice == value) return true;
    list.remove_prefix(std::min(choice.size() + 1, list.size()));
  }
  return false;
}

void Foreign::check(const std::string& origin, std::string_view value) const {
  if (ignored() || is_one_of(value, accepted)) return;
  std::string message = origin + ": " + std::string(reason);
  if (!accepted.empty()) message += "; accepted: " + std::string(accepted);
  throw ParseError(message);
}

}  // namespace anymesh
