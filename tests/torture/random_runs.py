#!/usr/bin/env python3
"""Random models, precisions and flags, each trained for six steps by one process and on a random mesh, which saves after three.
From there on it must go on as before on the same mesh, bit for bit, and on two others, there by the checkpoint itself and by
ds_to_universal, close to the one process. Every choice is one that is accepted: a refusal is a failure.

    random_runs.py FOLDER_OF_EXECUTABLES [TRIALS [SEED]]        default: 10 1, about 5 s each on two cores
"""

import atexit
import csv
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.argv[1]).resolve()
TRIALS, SEED = (int(text) for text in (sys.argv[2:] + ["10", "1"][len(sys.argv) - 2:])[:2])
BATCH, STEPS, SAVED = 12, 6, 3
MEASURED = ("tokens_per_s", "elapsed_ms")


class Failure(Exception):
    pass


def call(command, what):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if result.returncode != 0:
        raise Failure(f"{what}: exit code {result.returncode}\n{result.stdout[-2000:]}")


def rows(path):
    with open(path) as file:
        return {int(row["iteration"]): row for row in csv.DictReader(file)}


class Trial:
    def __init__(self, draw, trainer):
        self.draw = draw
        self.trainer = trainer
        self.heads = draw.choice([2, 4, 6, 8])
        self.layers = draw.randint(1, 6)
        self.kv_heads = draw.choice([k for k in range(1, self.heads + 1) if self.heads % k == 0]) if self.maybe(0.3) else self.heads
        self.seq_length = draw.choice([7, 8, 16, 24])
        self.micro_batch = draw.choice([1, 1, 2, 3])
        self.stages_have_names = self.maybe(0.8)
        self.flags = self.model() + self.training()

    def maybe(self, chance):
        return self.draw.random() < chance

    def some(self, chance, *flags):
        return list(flags) if self.maybe(chance) else []

    def model(self):
        pick = self.draw.choice
        hidden = self.heads * pick([2, 4, 6, 8])
        flags = ["--num-layers", self.layers, "--hidden-size", hidden, "--num-attention-heads", self.heads,
                 "--num-key-value-heads", self.kv_heads, "--seq-length", self.seq_length,
                 "--max-position-embeddings", self.seq_length + pick([0, 8]),
                 "--mock-data", "--vocab-size", pick([61, 100, 257]), "--make-vocab-size-divisible-by", pick([1, 8, 64])]
        flags += self.some(0.3, "--swiglu")
        if "--swiglu" in flags or self.maybe(0.3):
            flags += ["--ffn-hidden-size", self.heads * pick([8, 12])]
        flags += self.some(0.3, "--disable-bias-linear") + self.some(0.4, "--normalization", "rmsnorm")
        flags += self.some(0.2, "--embed-layernorm") + self.some(0.3, "--untie-embeddings-and-output-weights")
        flags += self.some(0.2, "--no-bias-gelu-fusion")
        if not self.stages_have_names:
            flags += ["--no-pipeline-parallel"]
        rotary = ["--use-rotary-position-embeddings"]
        flags += pick([[], [], ["--no-position-embedding"], ["--position-embedding-type", "alibi"], rotary,
                       rotary + (["--rotary-percent", 0.5] if hidden // self.heads % 4 == 0 else []),
                       rotary + ["--use-rope-scaling"], rotary + ["--rotary-seq-len-interpolation-factor", 2]])
        return flags

    def training(self):
        pick = self.draw.choice
        self.precision = pick([[], [], [], ["--bf16"], ["--fp16", "--initial-loss-scale", 65536]])
        self.validates = self.maybe(0.3)
        self.freezes = self.maybe(0.25)
        frozen = ["--freeze", pick(["norm.*weight", "word_embeddings", "attention", "mlp"])] if self.freezes else []
        validation = ["--eval-interval", 2, "--eval-iters", 2] if self.validates else ["--eval-iters", 0]
        return ["--micro-batch-size", self.micro_batch, "--global-batch-size", BATCH, "--train-iters", STEPS,
                "--lr", 1e-3, "--lr-decay-iters", 20, "--weight-decay", pick([0, 0.1]), "--clip-grad", pick([0, 0.1, 1]),
                "--attention-dropout", pick([0, 0.1, 0.3]), "--hidden-dropout", pick([0, 0.1]),
                "--seed", self.draw.randint(1, 9999)] + self.precision + validation + frozen

    def mesh(self):
        while True:
            tp, pp, dp = (self.draw.choice(sizes) for sizes in ([1, 1, 2, 2, 3, 4], [1, 1, 2, 3], [1, 2, 3, 4]))
            fits = tp * pp * dp <= 6 and self.kv_heads % tp == 0 and pp <= self.layers and BATCH % (dp * self.micro_batch) == 0
            if fits and (pp == 1 or self.stages_have_names):
                break
        stage = self.draw.randint(0, 3)
        flags = ["--tensor-model-parallel-size", tp, "--pipeline-model-parallel-size", pp, "--zero-stage", stage]
        flags += self.some(0.3, "--sequence-parallel") if self.seq_length % tp == 0 else []
        flags += self.some(0.3, "--activation-checkpointing")
        flags += self.some(0.25, "--offload-optimizer", self.draw.choice(["cpu", "nvme"])) if stage >= 1 else []
        flags += self.some(0.25, "--offload-param", self.draw.choice(["cpu", "nvme"])) if stage == 3 else []
        return tp * pp * dp, flags + (["--nvme-path", "."] if "nvme" in flags else [])

    def train(self, name, mesh, *more):
        ranks, flags = mesh
        self.command = [*flags, *more, *self.flags]
        call([*self.trainer, "--local-ranks", ranks, *self.command, "--loss-csv", f"{name}.csv"], f"{name} on {ranks} ranks")
        return rows(f"{name}.csv")

    def saves(self, flags):
        chosen = self.some(0.15, "--report-save", "--report-comm", "--report-memory")
        chosen += self.some(0.5, "--exclude-frozen-parameters") if self.freezes else []
        if "nvme" not in flags and self.maybe(0.4):
            return chosen + ["--async-save"]
        return chosen + self.some(0.2, "--save-16bit-model")

    def run(self):
        one = self.train("one", (1, []))
        mesh = self.mesh()
        saves = self.saves(mesh[1])
        run = self.train("run", mesh, "--save", "saved", "--save-interval", SAVED, *saves)
        self.near(one, run, 1)
        call([BIN / "ckpt", "verify", "saved"], "ckpt verify")
        load = ["--load", "saved", "--load-tag", f"global_step{SAVED}"]
        if "--exclude-frozen-parameters" not in saves:  # frozen parameters start from the seed, the same in all of these runs
            call([BIN / "zero_to_fp32", "saved", "fp32", "--safe_serialization"], "zero_to_fp32")
        self.equal(run, self.train("again", mesh, *load))
        self.near(one, self.train("direct", self.mesh(), *load, *(["--verify-resume"] if self.validates else [])), SAVED + 1)
        call([BIN / "ds_to_universal", "--input_folder", f"saved/global_step{SAVED}", "--output_folder", f"saved/global_step{SAVED}_universal"], "ds_to_universal")
        load = ["--load", "saved", "--load-tag", f"global_step{SAVED}_universal", "--universal-checkpoint"]
        self.near(one, self.train("universal", self.mesh(), *load), SAVED + 1)

    def near(self, one, run, first):
        tolerance = {"": 2e-5, "--bf16": 3e-2, "--fp16": 1e-2}[(self.precision or [""])[0]]
        if list(run) != list(range(first, STEPS + 1)):
            raise Failure(f"steps {list(run)}")
        for step, row in run.items():
            mine, ours = float(one[step]["lm_loss"]), float(row["lm_loss"])
            if not abs(mine - ours) <= tolerance * abs(mine):
                raise Failure(f"step {step}: loss {ours}, of one process {mine}")

    def equal(self, run, again):
        for step in range(SAVED + 1, STEPS + 1):
            for column, text in run[step].items():
                if column not in MEASURED and again[step][column] != text:
                    raise Failure(f"step {step}, {column}: {again[step][column]} after the resume, {text} before")


def main():
    with tempfile.TemporaryDirectory(prefix="anymesh-random.") as scratch:
        os.environ["OMP_NUM_THREADS"] = "1"
        socket = f"{scratch}/warm"
        warm = subprocess.Popen([BIN / "warm_trainer", socket])  # starts once for all runs: tests/support/warm_start.h
        atexit.register(warm.terminate)
        for index in range(TRIALS):
            trial = Trial(random.Random(f"{SEED}:{index}"), [BIN / "warm_run", socket])
            folder = tempfile.mkdtemp(dir=scratch)
            os.chdir(folder)
            try:
                trial.run()
            except Failure as failure:
                sys.exit(f"FAIL: seed {SEED}, trial {index}: {failure}\nthe last run: {' '.join(map(str, trial.command))}")
            os.chdir(scratch)
            subprocess.run(["rm", "-rf", folder], check=True)
            print(f"ok: seed {SEED}, trial {index}: {' '.join(map(str, trial.flags))}", flush=True)


main()
