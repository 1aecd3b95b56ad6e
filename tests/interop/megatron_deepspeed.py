#!/usr/bin/env python3
"""ds_reshard and ds_to_universal against real Megatron-DeepSpeed:

    megatron_deepspeed.py FOLDER_OF_EXECUTABLES MEGATRON_DEEPSPEED

Trains a GPT for 20 iterations on one mesh, and saves after 10. Converts that for other meshes, where Megatron-DeepSpeed or our
pretrain_gpt resumes. Losses 11 to 20 must be those of the run that went on. One line per case; exits 1 if any fails.
"""
import collections
import csv
import json
import pathlib
import shutil
import sys

import megatron_cpu
from checks import check, expect, furthest, our, too_far

SOURCES = pathlib.Path(sys.argv[2])
DATA = pathlib.Path(__file__).resolve().parents[1] / "fixtures/data"
BOUND = {"fp32": 1e-6, "bf16": 1e-4}
BOUND_OF_PRECISIONS = 1e-3  # from one to the other

# `sums`: of gradients, where it is not the model's own precision.
Run = collections.namedtuple("Run", "stage dtype sums", defaults=[""])
Z0, Z1, Z1_SUMS, Z0_FP32, Z1_FP32 = Run(0, "bf16"), Run(1, "bf16"), Run(1, "bf16", "fp32"), Run(0, "fp32"), Run(1, "fp32")
SAVED = {  # name: run, mesh as tp, pp, dp
    "z0-bf16-1x1x2": (Z0, (1, 1, 2)),
    "z0-bf16-2x2x1": (Z0, (2, 2, 1)),
    "z1-bf16-sums-1x1x1": (Z1_SUMS, (1, 1, 1)),
    "z1-bf16-2x1x1": (Z1, (2, 1, 1)),
    "z0-fp32-1x1x1": (Z0_FP32, (1, 1, 1)),
    "z0-fp32-2x1x1": (Z0_FP32, (2, 1, 1)),
}
# Source, the program that converts it (or that resumes from its universal folder), run and mesh there. With a pipeline, bf16 at
# ZeRO 0 is BF16_Optimizer; it goes on at ZeRO 1.
CASES = [
    ("z0-bf16-1x1x2", "ds_reshard", Z1, (1, 1, 1)),
    ("z0-bf16-1x1x2", "ds_reshard", Z1, (2, 1, 1)),
    ("z0-bf16-1x1x2", "ds_reshard", Z1, (1, 2, 1)),
    ("z0-bf16-1x1x2", "ds_to_universal", Z1, (2, 1, 1)),
    ("z0-bf16-2x2x1", "ds_reshard", Z1, (1, 1, 2)),
    ("z0-bf16-2x2x1", "ds_reshard", Z1, (1, 2, 1)),
    ("z0-bf16-2x2x1", "ds_reshard", Z1, (2, 1, 1)),
    ("z0-bf16-2x2x1", "ds_to_universal", Z1, (1, 1, 2)),
    ("z0-bf16-2x2x1", "ds_reshard", Z1_FP32, (2, 2, 1)),
    ("z0-fp32-2x1x1", "ds_reshard", Z1, (2, 1, 1)),
    ("z1-bf16-2x1x1", "ds_reshard", Z1_FP32, (1, 2, 1)),
    ("z1-bf16-sums-1x1x1", "ds_reshard", Z1_SUMS, (2, 1, 1)),
    ("z1-bf16-sums-1x1x1", "ds_reshard", Z1_SUMS, (1, 2, 1)),
    ("z1-bf16-2x1x1", "ds_reshard", Z1, (1, 1, 2)),
    ("z0-fp32-1x1x1", "ds_reshard", Z0_FP32, (2, 1, 1)),
    ("z0-fp32-1x1x1", "ds_reshard", Z0_FP32, (1, 2, 1)),
    ("z0-fp32-2x1x1", "ds_reshard", Z0_FP32, (1, 1, 1)),
    ("z0-fp32-2x1x1", "ds_reshard", Z1_FP32, (1, 2, 1)),
    ("z0-bf16-1x1x2", "pretrain_gpt", Z1, (2, 1, 1)),
    ("z0-bf16-1x1x2", "pretrain_gpt", Z1, (1, 2, 2)),
    ("z0-bf16-2x2x1", "pretrain_gpt", Z1, (1, 1, 2)),
    ("z0-bf16-2x2x1", "pretrain_gpt", Z0, (2, 1, 1)),
]


def flags_of(run):
    return ["--data-path", "data/corpus_text_document", "--vocab-file", DATA / "vocab.json", "--merge-file", DATA / "merges.txt",
            "--zero-stage", run.stage] + ["--bf16"] * (run.dtype == "bf16")


def train(name, run, mesh, *flags):
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1000,
              "gradient_clipping": 1.0 if run.stage or run.dtype == "bf16" else 0.0,  # theirs of fp32 at ZeRO 0 differs by pp
              "zero_optimization": {"stage": run.stage}, "bf16": {"enabled": run.dtype == "bf16"}}
    if run.sums:
        config["data_types"] = {"grad_accum_dtype": run.sums}
    file = pathlib.Path(f"{name}.json")
    file.write_text(json.dumps(config))
    return megatron_cpu.train(SOURCES, mesh, [*flags_of(run), "--deepspeed_config", file, *flags], pathlib.Path("logs") / name)


def continue_here(name, run, mesh, *flags):
    """The same by our pretrain_gpt."""
    table = pathlib.Path(f"{name}.csv")
    our("pretrain_gpt", "--local-ranks", mesh[0] * mesh[1] * mesh[2], *megatron_cpu.flags(mesh), *flags_of(run),
        *flags, "--loss-csv", table)
    with table.open() as rows:
        return {int(row["iteration"]): float(row["lm_loss"]) for row in csv.DictReader(rows)}


def convert(name, source, program, run, mesh):
    """The flags that load it."""
    tag = pathlib.Path("saved") / source / "global_step10"
    if program == "ds_reshard":
        our(program, "--input_folder", tag, "--output_folder", f"{name}/global_step10",
            "--target", "tp={},pp={},dp={},zero={},dtype={}".format(*mesh, run.stage, run.dtype))
        return ["--load", name]
    our("ds_to_universal", "--input_folder", tag, "--output_folder", f"{name}/global_step10_universal")
    return ["--load", name, "--universal-checkpoint"]


def resumed(source, program, run, mesh, truth):
    """What differs, and how far the losses are off."""
    name = f"{source}-by-{program}-as-z{run.stage}-{'x'.join(map(str, mesh))}"
    resume = continue_here if program == "pretrain_gpt" else train
    losses = resume(name, run, mesh, *convert(name, source, program, run, mesh))
    expected = {step: loss for step, loss in truth.items() if step > 10}
    expect(losses.keys() == expected.keys() and len(expected) == 10, f"iterations {sorted(losses)}")
    off = furthest([losses[step] for step in expected], expected.values())
    bound = BOUND[run.dtype] if SAVED[source][0].dtype == run.dtype else BOUND_OF_PRECISIONS
    return too_far("losses", off, bound), f"losses {off:.1e} off"


def main():
    megatron_cpu.prepare(SOURCES)
    shutil.copytree(DATA, "data")  # Megatron writes the order of samples beside it
    truths = {name: train(name, run, mesh, "--save", f"saved/{name}", "--save-interval", 10)
              for name, (run, mesh) in SAVED.items()}
    check("Megatron-DeepSpeed", {
        f"{source} by {program} as ZeRO {run.stage}, {run.dtype}, {'x'.join(map(str, mesh))}":
            (0, resumed, source, program, run, mesh, truths[source]) for source, program, run, mesh in CASES})


if __name__ == "__main__":
    main()
