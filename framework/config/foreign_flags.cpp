#include "framework/config/foreign_flags.h"

#include <algorithm>
#include <utility>

#include "framework/config/config.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

constexpr bool kValue = true;
constexpr bool kSwitch = false;

constexpr std::string_view kRecompute =
    "use --activation-checkpointing, which keeps only the input of each layer, or "
    "--recompute-modules, only those of parts of it";

constexpr Foreign kForeignFlags[] = {
    // Communication and kernels: they compute the same numbers by other means.
    {"deepspeed"},
    {"local-rank|local_rank|lazy-mpu-init|DDP-impl", kValue},
    {"no-contiguous-buffers-in-local-ddp|no-scatter-gather-tensors-in-pipeline|"
     "overlap-p2p-communication|overlap-grad-reduce|use-ring-exchange-p2p|no-async-tensor-model-"
     "parallel-allreduce|"
     "no-gradient-accumulation-fusion|no-masked-softmax-fusion"},
    {"exit-signal-handler"},  // always on
    {"no-bias-dropout-fusion|no-persist-layer-norm|disable-mem-efficient-ln|use-flash-attn|"
     "use-flash-attn-v1|use-flash-attn-v2|use-flash-attn-triton|use-flash-attn-builder|"
     "ds_fused_adam|cpu_torch_adam|use-cpu-initialization"},
    {"empty-unused-memory-level", kValue},
    {"zero-reduce-scatter|zero-contigious-gradients"},
    {"zero-reduce-bucket-size|zero-allgather-bucket-size", kValue},
    {"use-pin-memory"},
    // Numerics that always hold here or cancel out: the layer number of query-key scaling is
    // divided out again before the softmax.
    {"no-query-key-layer-scaling|attention-softmax-in-fp32|accumulate-allreduce-grads-in-fp32"},
    // Data loading and logs: every scalar is written at every step. "learnig" is Megatron's
    // spelling.
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

    // Accepted only with a value that describes this trainer.
    {"data-impl", kValue, "only Megatron's .bin/.idx files are read", "mmap|infer"},
    {"dataloader-type", kValue, "samples are read in the order of the shuffled index", "single"},
    {"transformer-impl", kValue, "Transformer Engine is not used", "local"},
    {"weight-decay-incr-style", kValue, "the weight decay is constant", "constant"},
    {"ds-sequence-parallel-size", kValue, "attention over a cut sequence is not in this version",
     "1"},
    {"mlp-type", kValue, "residual experts are not in this version", "standard"},
    {"moe-router-load-balancing-type", kValue,
     "routers are balanced by --moe-aux-loss-coeff, over a micro-batch", "aux_loss"},
    {"moe-token-dispatcher-type", kValue, "tokens travel by an all-to-all", "alltoall"},
    {"moe-grouped-gemm|moe-permute-fusion"},
    {"remote-device", kValue, "use --offload-param", "none"},

    // The model.
    {"squared-relu", kSwitch, "the MLP has GELU, or --relu, --swiglu or --geglu"},
    {"glu-activation", kValue, "use --swiglu or --geglu"},
    {"apply-residual-connection-post-layernorm", kSwitch, "residuals are taken before the norm"},
    {"openai-gelu", kSwitch, "the tanh GELU is the default; leave out --no-bias-gelu-fusion too"},
    {"init-method-xavier-uniform", kSwitch, "weights are drawn as --init-method-std says"},
    {"encoder-num-layers", kValue, "use --num-layers"},
    {"encoder-seq-length", kValue, "use --seq-length"},

    // Precision and parallelism.
    {"fp32-residual-connection", kSwitch, "not in this version"},
    {"num-virtual-stages-per-pipeline-rank", kValue, "use --num-layers-per-virtual-pipeline-stage"},
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
    {"train-tokens|lr-decay-tokens|lr-warmup-tokens", kValue,
     "counts in tokens are not read; use --train-samples"},
    {"warmup", kValue, "use --lr-warmup-fraction"},
    {"start-weight-decay|end-weight-decay", kValue,
     "the weight decay is constant; use --weight-decay"},
    {"train-data-path|valid-data-path|test-data-path", kValue, "use --data-path with --split"},
    {"no-save-rng", kSwitch, "checkpoints are always complete"},
    {"skip-train", kSwitch, "not in this version"},
};

constexpr Synonym kSynonyms[] = {
    {"tp|tp-size|tensor-parallel|tensor-parallel-size|tensor-model-parallel|model-parallel|mp-size|"
     "autotp-size",
     "use --tensor-model-parallel-size N"},
    {"pp|pp-size|pipeline-parallel|pipeline-parallel-size|pipeline-model-parallel|num-stages",
     "use --pipeline-model-parallel-size N"},
    {"dp|dp-size|data-parallel|data-parallel-size|data-model-parallel-size|fsdp",
     "data parallelism takes the remaining ranks: start tensor x pipeline x data (mpirun -n)"},
    {"cp|cp-size|context-parallel|context-parallel-size|sp|sp-size|sequence-parallel-size|"
     "sequence-parallel-degree|ulysses-sequence-parallel-size",
     "attention over a cut sequence is not in this version; --sequence-parallel cuts the rest over "
     "the tensor-parallel ranks"},
    {"ep|ep-size|expert-parallel|expert-parallel-size", "use --expert-model-parallel-size N"},
    {"etp|etp-size", "use --expert-tensor-parallel-size N"},
    {"moe-experts|num-local-experts|n-experts", "use --num-experts N"},
    {"zero|zero-optimization|zero-level|zero-optimization-stage", "use --zero-stage 0, 1, 2 or 3"},
    {"nproc|nproc-per-node|nprocs|num-gpus|num-nodes|nnodes|np|n|gpus|world-size|num-processes|"
     "master-addr|master-port|node-rank|rdzv-backend|rdzv-endpoint|hostfile|include|exclude",
     "how many ranks there are, and where, is for the launcher: mpirun -n N, or "
     "examples/slurm/launch.sh"},
    {"learning-rate|max-lr|base-lr|init-lr", "use --lr"},
    {"lr-scheduler|lr-scheduler-type|scheduler|lr-schedule", "use --lr-decay-style"},
    {"warmup-steps|warmup-iters|warmup-num-steps|lr-warmup-steps|num-warmup-steps",
     "use --lr-warmup-iters N"},
    {"warmup-ratio|warmup-fraction", "use --lr-warmup-fraction X"},
    {"wd", "use --weight-decay"},
    {"beta1|adam-beta-1", "use --adam-beta1"},
    {"beta2|adam-beta-2", "use --adam-beta2"},
    {"eps|epsilon|adam-epsilon", "use --adam-eps"},
    {"max-grad-norm|grad-clip|gradient-clipping|clip-grad-norm|clip", "use --clip-grad X"},
    {"max-steps|steps|num-steps|total-steps|train-steps|max-iters|num-iters|iters|iterations|"
     "training-steps",
     "use --train-iters N"},
    {"epochs|num-epochs|num-train-epochs|max-epochs|train-epochs",
     "the length is in steps or samples: use --train-iters N or --train-samples N"},
    {"per-device-train-batch-size|per-device-batch-size|train-micro-batch-size-per-gpu|mbs|"
     "micro-bs|per-gpu-batch-size|microbatch-size",
     "use --micro-batch-size N"},
    {"train-batch-size|gbs|total-batch-size|global-bs|bs|per-device-eval-batch-size|"
     "eval-batch-size",
     "use --global-batch-size N, which validation uses too"},
    {"gradient-accumulation-steps|grad-accum|grad-accumulation-steps|accumulate-grad-batches|gas|"
     "num-microbatches|num-micro-batches",
     "it follows: --global-batch-size / (--micro-batch-size x data-parallel size); use "
     "--global-batch-size N"},
    {"gradient-checkpointing|activation-recompute|recompute|recomputation",
     "use --activation-checkpointing"},
    {"mixed-precision|dtype|torch-dtype|precision|params-dtype|amp",
     "use --bf16 or --fp16; without either all is fp32"},
    {"resume|resume-from|resume-from-checkpoint|restore|checkpoint|load-checkpoint|load-dir|ckpt|"
     "load-path|model-name-or-path",
     "use --load FOLDER, and --load-tag for another checkpoint there than the newest"},
    {"output-dir|output|save-dir|save-path|checkpoint-dir|ckpt-dir|out|output-folder|outdir",
     "use --save FOLDER"},
    {"save-steps|save-every|checkpoint-interval|save-freq|save-frequency", "use --save-interval N"},
    {"eval-steps|eval-every|eval-freq|evaluation-interval|val-interval|val-check-interval",
     "use --eval-interval N"},
    {"logging-steps|log-every|log-freq|print-freq|steps-per-print", "use --log-interval N"},
    {"logging-dir|tensorboard|tb-dir|log-dir|logdir", "use --tensorboard-dir FOLDER"},
    {"max-length|max-seq-length|max-seq-len|sequence-length|seqlen|block-size|context-length|"
     "ctx-len|n-ctx|model-max-length",
     "use --seq-length N, and --max-position-embeddings N"},
    {"layers|n-layers|n-layer|nlayers|num-hidden-layers|depth", "use --num-layers N"},
    {"hidden-dim|d-model|n-embd|dim|embed-dim|model-dim|n-embed", "use --hidden-size N"},
    {"heads|n-heads|n-head|nheads|num-heads|attention-heads", "use --num-attention-heads N"},
    {"n-kv-heads|num-kv-heads|gqa", "use --num-key-value-heads N"},
    {"intermediate-size|mlp-dim|d-ff|ffn-dim|ffn-size", "use --ffn-hidden-size N"},
    {"lora-r|lora-dim|lora-attn-dim", "use --lora-rank R"},
    {"target-modules|lora-target-modules|lora-modules", "use --lora-target NAME..."},
    {"dropout", "use --hidden-dropout X and --attention-dropout X"},
    {"dataset|train-data|train-file|data-dir|data-prefix|corpus|input|dataset-path|train-path|"
     "dataset-name",
     "use --data-path PREFIX, the output of preprocess_data without .bin and .idx"},
    {"tokenizer|tokenizer-name|tokenizer-path|tokenizer-name-or-path",
     "use --tokenizer-type, with --vocab-file and --merge-file or --tokenizer-model"},
    {"deepspeed-config|ds-config|config|config-file|deepspeed-json", "use --deepspeed_config FILE"},
    {"random-seed|manual-seed", "use --seed N"},
    {"cpu|no-cuda|use-cpu|cuda|gpu|use-gpu", "use --device cpu or --device cuda"},
    {"backend|dist-backend|ddp-backend", "use --distributed-backend mpi or nccl"},
    {"timeout|ddp-timeout|distributed-timeout|timeout-minutes",
     "use --distributed-timeout-minutes N"},
    {"cpu-offload|offload|zero-offload", "use --offload-optimizer nvme or --offload-param nvme"},
};

}  // namespace

std::span<const Synonym> synonyms() { return kSynonyms; }

std::string_view advice_on(std::string_view name) {
  std::string spelt(name);
  std::ranges::replace(spelt, '_', '-');
  for (const Synonym& synonym : kSynonyms)
    if (is_one_of(spelt, synonym.names)) return synonym.advice;
  return {};
}

std::span<const Foreign> foreign_flags() { return kForeignFlags; }

const Foreign* find_foreign(std::span<const Foreign> list, std::string_view name) {
  const auto is_named = [name](const Foreign& foreign) { return is_one_of(name, foreign.names); };
  const auto found = std::ranges::find_if(list, is_named);
  return found == list.end() ? nullptr : &*found;
}

std::string ignored_flags_text(std::span<const Foreign> list) {
  std::string text, line = " ";
  for (const Foreign& foreign : list) {
    if (!foreign.ignored()) continue;
    for (const std::string_view flag : split(foreign.names, '|')) {
      if (line.size() + flag.size() > 96) text += std::exchange(line, " ") + "\n";
      line += " --" + std::string(flag);
    }
  }
  return text + line + "\n";
}

bool is_one_of(std::string_view value, std::string_view list) {
  const std::vector<std::string_view> items = split(list, '|');
  return std::ranges::find(items, value) != items.end();
}

void Foreign::check(const std::string& origin, std::string_view value) const {
  if (ignored() || is_one_of(value, accepted)) return;
  std::string message = origin + ": " + std::string(reason);
  if (!accepted.empty()) message += "; accepted: " + std::string(accepted);
  throw UserError(message);
}

}  // namespace anymesh
