#include "framework/config/foreign_flags.h"

#include <algorithm>

#include "framework/config/config.h"

namespace anymesh {
namespace {

constexpr bool kValue = true;
constexpr bool kSwitch = false;

constexpr std::string_view kRecompute =
    "use --activation-checkpointing, which keeps only the input of each layer";

constexpr Foreign kForeignFlags[] = {
    // Communication and kernels: the same numbers by other means.
    {"deepspeed"},
    {"local-rank|local_rank|lazy-mpu-init|DDP-impl", kValue},
    {"no-contiguous-buffers-in-local-ddp|no-scatter-gather-tensors-in-pipeline|"
     "overlap-p2p-communication|use-ring-exchange-p2p|no-async-tensor-model-parallel-allreduce|"
     "no-gradient-accumulation-fusion|no-masked-softmax-fusion"},
    {"exit-signal-handler"},  // always on
    {"no-bias-dropout-fusion|no-persist-layer-norm|disable-mem-efficient-ln|use-flash-attn|"
     "use-flash-attn-v1|use-flash-attn-v2|use-flash-attn-triton|use-flash-attn-builder|"
     "ds_fused_adam|cpu_torch_adam|use-cpu-initialization"},
    {"empty-unused-memory-level", kValue},
    {"zero-reduce-scatter|zero-contigious-gradients"},
    {"zero-reduce-bucket-size|zero-allgather-bucket-size", kValue},
    {"use-pin-memory"},
    // Numerics that are always so here, or cancel out: the layer number of the query-key scaling
    // is divided out again before the softmax.
    {"no-query-key-layer-scaling|attention-softmax-in-fp32|accumulate-allreduce-grads-in-fp32"},
    // Reading data, and logs: every scalar is written at every step. "learnig" is Megatron's.
    {"num-workers", kValue},
    {"mmap-warmup"},
    {"data-cache-path|timing-log-level|timing-log-option", kValue},
    {"no-barrier-with-level-1-timing"},
    {"tensorboard-log-interval|tensorboard-queue-size", kValue},
    {"log-timers-to-tensorboard|log-batch-size-to-tensorboard|no-log-learnig-rate-to-tensorboard|"
     "no-log-loss-scale-to-tensorboard|log-validation-ppl-to-tensorboard|"
     "log-optimizer-states-to-tensorboard|log-memory-to-tensorboard|log-world-size-to-tensorboard|"
     "log-params-norm|log-num-zeros-in-grad"},
    {"wandb-project|wandb-exp-name|wandb-save-dir", kValue},

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
    {"checkpoint-activations|deepspeed-activation-checkpointing|recompute-activations", kSwitch,
     kRecompute},
    {"checkpoint-num-layers|recompute-granularity|recompute-method|recompute-num-layers", kValue,
     kRecompute},
    {"distribute-checkpointed-activations|partition-activations|contigious-checkpointing|"
     "checkpoint-in-cpu",
     kSwitch,
     "--activation-checkpointing keeps the input of each layer whole, and where it was computed"},

    // Batches, schedule, data, checkpoints.
    {"batch-size", kValue, "use --micro-batch-size"},
    {"rampup-batch-size", kValue, "the batch size is constant; use --global-batch-size"},
    {"train-tokens|lr-decay-tokens|lr-warmup-tokens", kValue,
     "counts in tokens are not read; use --train-samples"},
    {"warmup", kValue, "use --lr-warmup-fraction"},
    {"start-weight-decay|end-weight-decay", kValue,
     "the weight decay is constant; use --weight-decay"},
    {"train-data-path|valid-data-path|test-data-path", kValue, "use --data-path with --split"},
    {"reset-position-ids|reset-attention-mask", kSwitch,
     "documents are not separated within a sample"},
    {"eod-mask-loss", kSwitch, "the loss counts every token"},
    {"no-save-rng", kSwitch, "checkpoints are always complete"},
    {"use-checkpoint-args", kSwitch, "the model is what the flags say"},
    {"skip-train", kSwitch, "not in this version"},
};

}  // namespace

std::span<const Foreign> foreign_flags() { return kForeignFlags; }

const Foreign* find_foreign(std::span<const Foreign> list, std::string_view name) {
  const auto is_named = [name](const Foreign& foreign) { return is_one_of(name, foreign.names); };
  const auto found = std::ranges::find_if(list, is_named);
  return found == list.end() ? nullptr : &*found;
}

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    items.push_back(list.substr(0, list.find('|')));
    list.remove_prefix(std::min(items.back().size() + 1, list.size()));
  }
  return items;
}

bool is_one_of(std::string_view value, std::string_view list) {
  const std::vector<std::string_view> items = items_of(list);
  return std::ranges::find(items, value) != items.end();
}

void Foreign::check(const std::string& origin, std::string_view value) const {
  if (ignored() || is_one_of(value, accepted)) return;
  std::string message = origin + ": " + std::string(reason);
  if (!accepted.empty()) message += "; accepted: " + std::string(accepted);
  throw ParseError(message);
}

}  // namespace anymesh
