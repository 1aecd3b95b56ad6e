#!/usr/bin/env python3
"""ds_reshard against real DeepSpeed, Trainer and accelerate:

    reshard.py FOLDER_OF_EXECUTABLES

Saves checkpoints on 2 (some on 4) ranks, cuts them anew for other sizes and stages, and loads each by the unmodified
load_checkpoint. All state must be that of the run that saved, bit for bit, and the next three losses must be those of the run
that went on there. One line per case; exits 1 if any fails.
"""
import collections
import copy
import pathlib
import shutil
import subprocess
import sys

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator

from ranks import jobs_on_ranks
from reshard_files import there_and_back
from reshard_model import live, make_engine, train

import reshard_hf

PROGRAM = pathlib.Path(sys.argv[1]) / "ds_reshard"
CLIENT_STATE = {"epoch": 2, "nested": {"names": ["a", "b"], "sums": torch.arange(5.0)}}
STEPS = 3  # before the save, and again after it
# How far a loss may be off. In half precision, one rounding: ranks sum gradients in another order.
BOUND = {"fp32": 1e-6, "bf16": 2**-8, "fp16": 2**-11}

Run = collections.namedtuple("Run", "stage dtype more", defaults=[{}])
Load = collections.namedtuple("Load", "name source run dp")

SOURCES = {f"z{stage}-{dtype}": Run(stage, dtype) for stage in range(4) for dtype in BOUND}
SOURCES |= {
    "z1-bf16-sums-fp32": Run(1, "bf16", {"data_types": {"grad_accum_dtype": "fp32"}}),
    "z2-fp32-round-robin": Run(2, "fp32", {"zero": {"round_robin_gradients": True}}),
    "z3-bf16-sub-groups": Run(3, "bf16", {"zero": {"sub_group_size": 150}}),
    "z2-fp32-sgd": Run(2, "fp32", {"optimizer": "sgd"}),
    "z1-fp32-adagrad": Run(1, "fp32", {"optimizer": "adagrad"}),
    "z2-bf16-lion": Run(2, "bf16", {"optimizer": "lion"}),
    "z1-bf16-muon": Run(1, "bf16", {"optimizer": "muon"}),
    "z2-bf16-muon": Run(2, "bf16", {"optimizer": "muon"}),
    "z2-bf16-amsgrad": Run(2, "bf16", {"optimizer": "amsgrad"}),
}
STAGES = [(3, 1), (1, 3), (2, 3), (1, 2), (0, 1), (1, 0)]


def loads():
    """Every checkpoint on other sizes, then changes of stage from 2 ranks to 3."""
    for name, run in SOURCES.items():
        sizes = (3,) if "optimizer" in run.more else (1, 3, 4, 5)
        yield from (Load(f"{name} on {dp}", name, run, dp) for dp in sizes)
    for dtype in ("fp32", "bf16"):
        for old, new in STAGES:
            yield Load(f"z{old}-{dtype} as ZeRO {new} on 3", f"z{old}-{dtype}", Run(new, dtype), 3)


# ---- On the ranks

def save(folder, run):
    engine = make_engine(run.stage, run.dtype, **copy.deepcopy(run.more))
    train(engine, 0, STEPS)
    engine.module.counts += 100
    engine.save_checkpoint(str(folder), client_state=CLIENT_STATE)
    state = live(engine)
    if torch.distributed.get_world_size() == 2:
        losses = train(engine, STEPS, STEPS)
        if torch.distributed.get_rank() == 0:
            torch.save({"state": state, "losses": losses}, folder / "truth.pt")
    engine.destroy()


def differences(a, b):
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            yield f"{name} is only in what was {'saved' if name in a else 'loaded'}"
        elif a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            yield f"{name} is {b[name].dtype} {list(b[name].shape)}, not {a[name].dtype} {list(a[name].shape)}"
        elif not torch.equal(a[name].flatten().view(torch.uint8), b[name].flatten().view(torch.uint8)):
            yield f"{name} has other bits"


def furthest(losses, expected):
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


def load(folder, run, truth):
    """What differs, the number of tensors, and how far the losses are off, of a job that resumes from `folder`."""
    engine = make_engine(run.stage, run.dtype, seed=2, **copy.deepcopy(run.more))
    path, client_state = engine.load_checkpoint(str(folder))
    wrong = [] if path else ["not loaded"]
    wrong += differences(truth["state"], live(engine))
    if client_state["epoch"] != 2 or client_state["nested"]["names"] != ["a", "b"]:
        wrong.append(f"client state {client_state}")
    off = furthest(train(engine, STEPS, STEPS), truth["losses"])
    engine.destroy()
    return wrong, len(truth["state"]), off


def save_hf(folder, kind, stage):
    losses = getattr(reshard_hf, f"with_{kind}")(folder, stage)
    if torch.distributed.get_rank() == 0:
        torch.save({"losses": losses[STEPS:]}, folder / "truth.pt")


def load_hf(folder, kind, stage, truth):
    losses = getattr(reshard_hf, f"with_{kind}")(folder.parent / "again", stage, resume=folder)
    return [], 0, furthest(losses, truth["losses"])


# ---- Here

def reshard(source, output, target):
    done = subprocess.run([PROGRAM, "--input_folder", source, "--output_folder", output, "--target", target],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ds_reshard --target {target}: {done.stdout[-500:]}{done.stderr[-2000:]}")


class Report:
    def __init__(self):
        self.failed = 0

    def __call__(self, name, result, bound):
        """`result` is an error, or (what differs, tensors, how far the losses are off)."""
        if isinstance(result, Exception):
            self.fail(name, result)
            return
        wrong, tensors, off = result
        if off > bound:
            wrong = [*wrong, f"losses are {off:.1e} off, at most {bound:.1e} expected"]
        if wrong:
            self.fail(name, f"{len(wrong)} differences: " + "; ".join(wrong[:6]))
        else:
            print(f"ok: {name}: {f'{tensors} tensors are equal, ' if tensors else ''}losses {off:.1e} off", flush=True)

    def fail(self, name, why):
        print(f"FAIL {name}: {why}", flush=True)
        self.failed += 1


def truth_of(source):
    return torch.load(source.parent / "truth.pt", weights_only=False)


def report_loads(size, cases, report):
    """Cuts the sources of `cases` for `size` ranks, and loads them there."""
    jobs, reported = [], []
    for case in cases:
        source = pathlib.Path("saved") / case.source / f"global_step{STEPS}"
        output = pathlib.Path("cut") / case.name.replace(" ", "-")
        try:
            reshard(source, output / source.name, f"dp={size},zero={case.run.stage}")
            truth = truth_of(source)
        except (RuntimeError, OSError) as error:
            report.fail(case.name, error)
            continue
        jobs.append((load, output, case.run, truth))
        reported.append(case)
    for case, result in zip(reported, jobs_on_ranks(size, pathlib.Path("logs"), jobs), strict=True):
        report(case.name, result, BOUND[case.run.dtype])


def main():
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on most CPUs, and these models are tiny
    pathlib.Path("logs").mkdir()
    report, cases = Report(), list(loads())
    jobs = [(save, pathlib.Path("saved") / name, run) for name, run in SOURCES.items()]
    for name, result in zip(SOURCES, jobs_on_ranks(2, pathlib.Path("logs"), jobs), strict=True):
        if isinstance(result, Exception):
            report.fail(f"saving {name}", result)
    for size in sorted({case.dp for case in cases}):
        report_loads(size, [case for case in cases if case.dp == size], report)
    print(f"{len(cases)} loads, {report.failed} failed")
    sys.exit(report.failed > 0)


if __name__ == "__main__":
    main()
