"""Real Megatron-DeepSpeed on CPU: its pretrain_gpt.py on ranks that are forks of this process (see ranks.py).

Its code for CPUs runs as it is. Modules that are not installed and that no GPT calls have empty stand-ins. One function of its
compiled data helpers is called: its twin in Python, which Megatron has too, takes its place.
"""
import re
import runpy
import sys
import types

import torch

from ranks import on_ranks

MODEL = """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
  --make-vocab-size-divisible-by 64 --init-method-std 0.02 --attention-dropout 0 --hidden-dropout 0 --no-bias-gelu-fusion
  --micro-batch-size 1 --global-batch-size 8 --train-iters 20 --log-interval 1 --eval-iters 0 --seed 1234 --split 100,0,0
  --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-decay-iters 20 --lr-warmup-iters 3
  --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95""".split()
THEIRS = """--eval-interval 1000 --data-impl mmap --num-workers 0 --distributed-backend gloo --no-masked-softmax-fusion
  --no-bias-dropout-fusion --no-gradient-accumulation-fusion --deepspeed""".split()


class LayerNorm(torch.nn.LayerNorm):
    """Takes an argument that Megatron gives to Apex's."""

    def __init__(self, *arguments, sequence_parallel=False, **more):
        super().__init__(*arguments, **more)


def stand_in(name, **contents):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)
    return sys.modules[name]


def prepare(sources):
    """Imports Megatron from the folder `sources`, once for all ranks."""
    sys.path.insert(0, str(sources))
    stand_in("six")
    stand_in("deepspeed.compression.compress", init_compression=None, redundancy_clean=None)  # DeepSpeed has it no more
    stand_in("megatron.model.vision.knn_monitor", compute_feature_bank=None)
    torch.nn.LayerNorm = LayerNorm
    import megatron.data.dataset_utils
    import megatron.data.gpt_dataset
    import megatron.optimizer
    import megatron.training
    megatron.optimizer.Adam = torch.optim.AdamW  # as Apex's FusedAdam, its optimizer on GPUs; on CPU it takes torch's Adam
    megatron.data.dataset_utils.compile_helper = lambda: None
    megatron.data.helpers = stand_in("megatron.data.helpers", build_sample_idx=megatron.data.gpt_dataset._build_sample_idx)


def pretrain(script, arguments):
    sys.argv = [str(script), *map(str, arguments)]
    runpy.run_path(sys.argv[0], None, "__main__")


def flags(mesh):
    return ["--tensor-model-parallel-size", mesh[0], "--pipeline-model-parallel-size", mesh[1], *MODEL]


def train(sources, mesh, arguments, logs):
    """{iteration: loss} of a run on mesh (tp, pp, dp)."""
    size = mesh[0] * mesh[1] * mesh[2]
    logs.mkdir(parents=True)
    on_ranks(size, logs, pretrain, sources / "pretrain_gpt.py", [*flags(mesh), *THEIRS, *arguments])
    said = (logs / f"rank{size - 1}.log").read_text()
    return {int(step): float(loss) for step, loss in re.findall(r"iteration +(\d+)/.*?lm loss: (\S+)", said)}
